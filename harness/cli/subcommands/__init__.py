"""The subcommands: what each takes, and what it does."""

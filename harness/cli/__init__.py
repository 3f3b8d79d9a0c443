"""The command line: subcommands, options, messages, exit codes."""

"""The verbs: what each takes, and what it does."""

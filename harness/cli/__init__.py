"""The command line: verbs, options, messages, exit codes."""

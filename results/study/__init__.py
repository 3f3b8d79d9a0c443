"""A study for readers: its plan joined with its records; several studies together."""

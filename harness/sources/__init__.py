"""Which code a trial runs: its digest, and whether it is the code of a study."""

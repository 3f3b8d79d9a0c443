"""Which code a trial runs: its sources, their digest, and whether two trees agree."""

"""The processes of a trial, and their measurements."""

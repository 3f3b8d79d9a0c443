"""The processes of a trial, and their cores and devices."""

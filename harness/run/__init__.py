"""Runs trials one after the other, from the parent process."""

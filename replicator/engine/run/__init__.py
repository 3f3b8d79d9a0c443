"""Execution: from a linked graph to a program that runs."""

"""Figures of a study: every number that a report shows."""

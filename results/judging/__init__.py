"""Verdicts: gates, comparisons, and what they can find."""

"""The words of gates, comparisons and power."""

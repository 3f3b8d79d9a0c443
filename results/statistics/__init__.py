"""Statistics: estimates with intervals, and rules that decide."""

"""A study as everything here reads it."""

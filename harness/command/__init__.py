"""Programs of the user's: commands that are started, read, and identified."""

"""What a change is judged against: sources of another revision."""

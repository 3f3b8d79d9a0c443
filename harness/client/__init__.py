"""What connects a program of anybody's to a study: files that can be copied."""

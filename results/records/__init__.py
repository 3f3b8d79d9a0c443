"""Records: what a study holds on disk, its schema and its bounds."""

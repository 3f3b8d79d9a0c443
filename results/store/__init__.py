"""Files of a study: written atomically, by one writer at a time."""

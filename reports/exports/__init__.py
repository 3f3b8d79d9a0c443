"""Every format that is not a page."""

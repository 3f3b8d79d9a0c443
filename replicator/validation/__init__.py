"""Checks of what users pass, made before anything else is done with it."""

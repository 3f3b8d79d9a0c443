"""Checks whether programs that are not of this tree keep to its interfaces."""

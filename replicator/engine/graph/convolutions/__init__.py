"""Convolutions computed in other ways than the user wrote, where that is faster."""

"""Actors: processes that act in environments with a recent policy."""

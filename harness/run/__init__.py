"""Runs trials one after the other, from outside."""

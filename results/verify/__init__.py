"""The second computation: figures and results anew, from raw observations."""

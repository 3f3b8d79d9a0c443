"""Replay: n-step transitions, sampled from what actors have written."""

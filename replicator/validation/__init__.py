"""Checks of the arguments that users pass, made before anything else."""

"""Checkpoints that restore on another backend or another number of replicas."""

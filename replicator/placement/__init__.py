"""Devices, the placement of replicas on them, and groups of workers."""

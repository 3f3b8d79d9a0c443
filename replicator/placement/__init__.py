"""Devices, which replica is on which, and which workers belong together."""

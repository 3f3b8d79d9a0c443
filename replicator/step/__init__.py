"""What a step function sees: its replica, logical devices, random streams, outputs."""

"""Optimizers over all replicas: clipping, accumulation, fused and sharded updates."""

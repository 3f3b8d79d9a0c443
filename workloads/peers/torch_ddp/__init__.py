"""PyTorch: DistributedDataParallel, a process per replica, gloo."""

"""Layers and losses that workloads share; no workload imports another one."""

"""Pipelines: a model cut into stages that work on micro-batches (Huang et al. 2019)."""

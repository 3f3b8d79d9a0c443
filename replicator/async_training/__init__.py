"""Asynchronous training over parameter servers, on TensorFlow's own coordinator.

Variables live on servers; every worker reads them, computes a gradient, and commits an
update in one locked section per server. In the order of a step's life: ``steps``,
``commit``, ``dispatch``.
"""

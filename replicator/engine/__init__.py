"""The in-graph engine: trace once, replicate the graph, link the collectives.

The order of the modules is the order of the work: ``trace``, ``optimize``, ``body``,
``invariance``, ``variables``, ``link``, ``replicate``, ``program``.
"""

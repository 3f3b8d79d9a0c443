"""The in-graph engine: trace once, replicate the graph, link the collectives.

The folders follow the order of the work: ``graph`` (trace, optimize, replicate),
``analysis`` (the plan), ``link`` (collectives) and ``run`` (the program).
"""

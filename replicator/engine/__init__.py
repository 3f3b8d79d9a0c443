"""The in-graph engine, in the order of its work.

A step is traced (``trace``), optimized (``optimize``), proved and planned
(``analyze``), copied (``replicate``), linked (``linker``) and run (``program``).
"""

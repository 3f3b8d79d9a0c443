"""Programs as published tutorials and guides have them, a function of a strategy each.

Data and networks are small, and what a program draws at random follows from the
example. Those that end in ``fit`` have one line for replicas, ``with
strategy.scope():``. Those that were written for ``tf.distribute`` have none.
"""

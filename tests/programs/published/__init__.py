"""Programs in the shape of published tutorials, a function of a strategy each.

Those that end in ``fit`` have one line for it, ``with strategy.scope():``. Those that
were written for ``tf.distribute`` have none. ``catalog.py`` lists them.
"""

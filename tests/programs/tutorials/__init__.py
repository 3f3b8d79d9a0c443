"""Programs in the style of public tutorials, each with a function ``train(repl)``.

``train`` makes its model inside ``repl.context()``, runs a few steps, and returns what
must be the same on any number of replicas as on one device with the whole batch. A
module names its ``ATOL`` where it needs more than that of ``targets``.
"""

"""Asynchronous training over parameter servers, on TensorFlow's own coordinator.

Variables live on servers; every worker reads them, computes a gradient, and commits an
update in one locked section per server. The modules, in the order of a step's life:
``connection`` (the cluster), ``placement`` (which server has which variable),
``inputs``, ``step`` (tracing), ``pull`` (reading variables in few transfers),
``commit`` and ``optimizer`` (the update), ``program`` (one per worker) and ``steps``
(all of them), ``assignment`` and ``dispatch`` (dispatching steps to workers, which may
be lost and come back), ``table`` (which variables workers share), ``faults`` (lost
servers), ``staleness`` (how old the read values were).
"""

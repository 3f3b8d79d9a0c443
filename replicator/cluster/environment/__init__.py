"""Cluster environments: who is in the job, which process is this, where is the chief.

One class per way to learn it, after the ``ClusterEnvironment`` of Lightning Fabric:
``addressed`` and ``slurm`` give all addresses, ``ranks`` numbers only, from which
``address_exchange`` finds them out. Free of TensorFlow, so that launchers can use it.
``__init__.pyi`` lists the names, which are loaded on first use: a process that a
launcher starts needs one of them, and waits for its imports.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""TF-Replicator on TensorFlow 2: write one device's step, run it on many.

Buchlovsky et al. 2019, "TF-Replicator: Distributed Machine Learning for Researchers".
``__init__.pyi`` lists the public names. They are loaded on first use, so that planning
tools can read ``replicator.catalog`` without importing TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Data sets that workloads share, and the batches that are made of them.

``__init__.pyi`` lists the public names. They are loaded on first use, so that names of
data sets are checked without TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

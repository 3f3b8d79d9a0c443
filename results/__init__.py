"""Studies on disk, and the numbers that follow from them. Never imports TensorFlow.

``__init__.pyi`` lists the public names. They are loaded on first use, so that the
command line can read the limits of its options without loading pandas.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

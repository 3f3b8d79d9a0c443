"""Figures of what was learned, with their intervals, and scores of generated images.

``__init__.pyi`` lists the public names. They are loaded on first use, so that figures
need no TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

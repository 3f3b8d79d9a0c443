"""D4PG: distributed distributional deterministic policy gradients.

Its parts, for agents of your own, are imported from here: ``__init__.pyi`` lists them.
Each is loaded on first use, so actors and the planner do without TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Statistics of studies: intervals of estimates, scores of runs, the rule of gates.

``__init__.pyi`` lists the public names, which are loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Reports: one offline HTML file, and a terminal table, from a study's store.

``__init__.pyi`` lists the public names. They are loaded on first use, so that the
command line can print its help without loading Matplotlib.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

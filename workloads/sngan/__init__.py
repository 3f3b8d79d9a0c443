"""Class-conditional SN-GAN (Miyato et al. 2018; Miyato & Koyama 2018).

Its parts, for programs of your own, are imported from here: ``__init__.pyi`` lists
them. Each is loaded on first use, so the planner does without TensorFlow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

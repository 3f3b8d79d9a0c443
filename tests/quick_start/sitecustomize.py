"""Makes processes of tests quick: half the time of TensorFlow's import, rare garbage.

Python imports this file at start where its folder is on ``PYTHONPATH``; ``conftest.py``
puts it there. Keras imports scikit-learn, Matplotlib and pandas if it finds them, for
wrappers that no test uses; it does without while TensorFlow or Keras is imported, and
the collector of garbage, which would find none, rests. Both are back after that, and
the collector looks less often than by default: a step is traced into a million small
objects, hardly any of which is garbage.
"""

from __future__ import annotations

import gc
import importlib.machinery
import sys

OPTIONAL = frozenset({"matplotlib", "pandas", "sklearn"})
SLOW = frozenset({"keras", "tensorflow"})
# Objects more than before, and collections between those of older objects.
THRESHOLDS = (50_000, 20, 20)


class _Finder:  # its base class would be imported in a hundredth of a second
    """Wraps the import of slow packages, and hides optional ones from them."""

    depth = 0

    def find_spec(self, name, path=None, target=None):
        if self.depth and name in OPTIONAL:
            raise ModuleNotFoundError(f"{name} is hidden by {__file__}", name=name)
        if name not in SLOW:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader.exec_module = self._quick(spec.loader.exec_module)
        return spec

    def _quick(self, exec_module):
        def exec_quickly(module):
            self.depth += 1
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                exec_module(module)
            finally:
                self.depth -= 1
                if was_enabled:
                    gc.freeze()
                    gc.enable()

        return exec_quickly


sys.meta_path.insert(0, _Finder())
gc.set_threshold(*THRESHOLDS)

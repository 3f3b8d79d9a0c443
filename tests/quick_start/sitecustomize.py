"""Makes processes of tests quick: imports, rare garbage, and files that are not synced.

Python imports this file at start where its folder is on ``PYTHONPATH``; ``conftest.py``
puts it there. Keras imports scikit-learn, Matplotlib and pandas if it finds them, for
wrappers that no test uses; it does without while TensorFlow or Keras is imported, and
the collector of garbage, which would find none, rests. Both are back after that, and
the collector looks less often than by default: a step is traced into a million small
objects, hardly any of which is garbage.

A file that is synced survives a power failure, which no test causes; a killed process
loses nothing that it has written. Nine tenths of the time of a study of twelve trials
went to that.
"""

import gc
import importlib.machinery
import os
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


def _do_not_sync(descriptor):
    """In place of ``os.fsync``; a descriptor that is not open is still an error."""
    os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())


sys.meta_path.insert(0, _Finder())
os.fsync = _do_not_sync
gc.set_threshold(*THRESHOLDS)

"""Modules of cases, for tests that repeat in their process what a cluster does."""

import importlib.util


def load(path):
    """A module by its file, whose folder is not on ``sys.path``."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Modules that lie beside tests."""

import importlib.util
import sys
from unittest import mock


def load(path):
    """A module by its file; it may import others of its folder."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "path", [*sys.path, str(path.parent)]):
        spec.loader.exec_module(module)
    return module

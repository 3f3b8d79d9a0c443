"""A generator of stores nobody measured, shared with the benchmarks."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import pytest

SOURCE = pathlib.Path(__file__).parents[1] / "benchmarks" / "synthetic.py"


@pytest.fixture(scope="session")
def synthetic() -> Any:
    """The module ``benchmarks/synthetic.py``."""
    if "synthetic_store" not in sys.modules:
        spec = importlib.util.spec_from_file_location("synthetic_store", SOURCE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up while it is executed.
        sys.modules["synthetic_store"] = module
        spec.loader.exec_module(module)
    return sys.modules["synthetic_store"]

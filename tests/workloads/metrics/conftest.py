"""Features and logits whose published scores are known."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from loading import load

FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(scope="session")
def golden_features() -> Any:
    """The module ``golden_features.py``."""
    return load(FOLDER / "golden_features.py")


@pytest.fixture(scope="session")
def goldens() -> Any:
    """What published implementations made of the golden features."""
    return json.loads((FOLDER / "goldens.json").read_text(encoding="utf-8"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded source of features."""
    return np.random.default_rng(20_190_201)

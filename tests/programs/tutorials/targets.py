"""What programs run on in one process, and how two results are compared."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import replicator

if TYPE_CHECKING:
    from types import ModuleType

# Other files of the folder are no programs.
_OTHERS = {"__init__", "sharing", "targets"}
PROGRAMS = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - _OTHERS)
IN_PROCESS = ("in_graph", "in_graph_mirrored", "tf_mirrored")
NUM_REPLICAS = 2

# Sums over 8 examples in another order, a few steps deep, in float32.
RTOL = 1e-4
ATOL = 2e-5


def load(name: str) -> ModuleType:
    return importlib.import_module(f"tutorials.{name}")


def make(target: str) -> Any:
    """A replicator of two replicas; of one on ``single``."""
    if target == "single":
        return replicator.create("single")
    options: dict[str, Any] = {}
    if target != "in_graph":
        options["devices"] = [f"CPU:{index}" for index in range(NUM_REPLICAS)]
    if target == "in_graph_mirrored":
        target, options["variable_placement"] = "in_graph", "mirrored"
    return replicator.create(target, num_replicas=NUM_REPLICAS, **options)


def run(name: str, repl: Any) -> Any:
    """What a program returns on a replicator, from the same initial weights."""
    keras.utils.set_random_seed(7)
    return load(name).train(repl)


def run_on(name: str, target: str) -> Any:
    return run(name, make(target))


def compare(name: str, expected: Any, got: Any) -> None:
    """Asserts that all that a program returned is the same."""
    assert list(expected) == list(got)
    atol = getattr(load(name), "ATOL", ATOL)
    for key, values in expected.items():
        wanted = values if isinstance(values, list) else [values]
        found = got[key] if isinstance(values, list) else [got[key]]
        assert len(wanted) == len(found), key
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_allclose(
                np.asarray(other), one, rtol=RTOL, atol=atol, err_msg=f"{name}: {key}"
            )

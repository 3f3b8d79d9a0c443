"""Replicas with copies of variables, on virtual devices: CPUs, or taken for GPUs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from replicator.core import devices
from tests.replicator.conftest import make

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def as_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes replicas whose devices have their own memory, and no op that hashes."""
    monkeypatch.setattr(devices, "is_cpu", lambda device: device == "host")
    monkeypatch.setattr(devices, "cpu_of", devices.first_cpu)
    return functools.partial(make, "in_graph_devices", 2)


@pytest.fixture
def mirrored() -> Callable[..., Any]:
    return functools.partial(make, "in_graph_mirrored", 2)

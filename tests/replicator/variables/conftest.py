"""Replicas with copies of variables, on virtual devices: CPUs, or taken for GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import replicator
from replicator.core import devices

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def as_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes replicas whose devices have their own memory, and no op that hashes."""
    monkeypatch.setattr(devices, "is_cpu", lambda device: device == "host")
    monkeypatch.setattr(devices, "cpu_of", devices.first_cpu)

    def make(num_replicas: int = 2, **options: Any) -> Any:
        names = [f"CPU:{index}" for index in range(num_replicas)]
        return replicator.create(
            "in_graph", num_replicas=num_replicas, devices=names, **options
        )

    return make


@pytest.fixture
def mirrored() -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        return replicator.create(
            "in_graph",
            num_replicas=2,
            devices=["CPU:0", "CPU:1"],
            variable_placement="mirrored",
            **options,
        )

    return make

"""Fixtures of the workload tests: data directories apart from the user's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from replicator.placement import devices

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

# Virtual devices must exist before TensorFlow runs its first op, so at collection; as
# many as the replicator's own tests want in the same process.
devices.split_cpu(4)


@pytest.fixture(scope="session", autouse=True)
def data_dirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Points the data directories at an empty place for the whole session."""
    root = tmp_path_factory.mktemp("data")
    shared = root
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = tmp_path_factory.getbasetemp().parent
    names = ("REPLICATOR_DATA_DIR", "TFDS_DATA_DIR")
    before = {name: os.environ.get(name) for name in names}
    os.environ["REPLICATOR_DATA_DIR"] = str(shared / "embedded")
    os.environ["TFDS_DATA_DIR"] = str(root / "tfds")
    yield root
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value

"""Fixtures of the workload tests: data directories apart from the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from replicator.core import devices

if TYPE_CHECKING:
    import pathlib

# Virtual devices must exist before TensorFlow runs its first op, so at collection; as
# many as the replicator's own tests want in the same process.
devices.split_cpu(4)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module", autouse=True)
def data_dirs(
    data_root: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pathlib.Path]:
    shared = data_root
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = tmp_path_factory.getbasetemp().parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICATOR_DATA_DIR", str(shared / "embedded"))
        patch.setenv("TFDS_DATA_DIR", str(data_root / "tfds"))
        yield data_root

"""set_determinism gives equal bits, in one process and in two."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from loading import load

import replicator

PROGRAM = pathlib.Path(__file__).with_name("determined_training.py")


@pytest.fixture
def train():
    """Trains four replicas from a seed; determinism is off again afterwards."""
    yield load(PROGRAM).train
    replicator.set_determinism(None)


@pytest.mark.processes
def test_runs_with_one_seed_are_equal_bit_by_bit(train):
    """Twice here and once in a new process: the losses' bits agree, others do not."""
    first, again, other = train(3), train(3), train(4)
    elsewhere = subprocess.run(
        [sys.executable, str(PROGRAM), "3"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )

    assert first == again == elsewhere.stdout.split()
    assert first != other


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**32, "3"])
def test_seeds_are_checked(seed):
    """The message has the range."""
    with pytest.raises(ValueError, match=r"seed .* must be an integer from 0 to 42949"):
        replicator.set_determinism(seed)

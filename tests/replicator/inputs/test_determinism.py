"""set_determinism gives equal bits, in one process and in two."""

import os
import pathlib

import case_cluster
import fork_server
import pytest
from loading import load

import replicator

PROGRAM = pathlib.Path(__file__).with_name("determined_training.py")
PROGRAM_SEC = 300.0


@pytest.fixture
def train():
    """Trains two replicas from a seed; determinism is off again afterwards."""
    yield load(PROGRAM).train
    replicator.set_determinism(None)


@pytest.mark.processes
def test_runs_with_one_seed_are_equal_bit_by_bit(train, tmp_path):
    """Twice here and once in a new process: the losses' bits agree, others do not."""
    first, again, other = train(3), train(3), train(4)
    code, text = fork_server.server(**case_cluster.ENV).run(
        [str(PROGRAM), "3"],
        env={**os.environ, **case_cluster.ENV},
        log=tmp_path / "log",
        timeout_sec=PROGRAM_SEC,
    )

    assert 0 == code, text
    assert first == again == text.splitlines()[-1].split()
    assert first != other


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**32, "3"])
def test_seeds_are_checked(seed):
    with pytest.raises(ValueError, match=r"seed .* must be an integer from 0 to 42949"):
        replicator.set_determinism(seed)

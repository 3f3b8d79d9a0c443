"""multi_worker in real clusters of processes, which check what they find."""

from pathlib import Path

import case_cluster
import pytest
from case_cluster import load

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
worker_cases = load(FOLDER / "worker_cases.py")
flat_cases = load(FOLDER / "flat_cases.py")


def _ran(module, folder):
    return case_cluster.ran(module, folder, path=FOLDER, num_workers=2)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    return _ran("worker_cases", tmp_path_factory.mktemp("workers"))


@pytest.fixture(scope="module")
def one_group(tmp_path_factory):
    return _ran("flat_cases", tmp_path_factory.mktemp("group"))


@pytest.mark.parametrize("case", [c for c in worker_cases.CASES if " " not in c])
def test_two_workers(two_workers, case):
    assert [None, None] == two_workers.values(case)


def test_an_uneven_epoch_on_workers_is_that_of_one_device(two_workers, check_epoch):
    """The second worker has no example in its last step; the checkpoint continues."""
    check_epoch(two_workers.values(worker_cases.EPOCH))


@pytest.mark.parametrize("case", flat_cases.CASES)
def test_two_workers_in_one_group(one_group, case):
    assert [None, None] == one_group.values(case)

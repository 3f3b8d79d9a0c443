"""fit and reductions on workers, which check what they find."""

from pathlib import Path

import case_cluster
import pytest
from case_cluster import load

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
workers_cases = load(FOLDER / "workers_cases.py")
RUNNERS = {
    "multi_worker": [("worker", 0), ("worker", 1)],
    "multi_worker_in_graph": [("worker", 0)],
}


@pytest.fixture(scope="module", params=RUNNERS)
def workers(request, tmp_path_factory):
    return case_cluster.ran(
        "workers_cases",
        tmp_path_factory.mktemp(request.param),
        path=FOLDER,
        num_workers=2,
        runners=RUNNERS[request.param],
        options={"backend": request.param},
    )


@pytest.mark.parametrize("case", workers_cases.CASES)
def test_two_workers(workers, case):
    assert not any(workers.values(case))

"""Trials whose workers run several replicas each, with TensorFlow."""

import json

import pytest

from harness.placement.processes import SHARE_VARIABLE
from results.store.study_store import Store
from results.study.cases import load_study
from results.study.matching import Outcome

TIMEOUT_SEC = 600

pytestmark = pytest.mark.processes


@pytest.mark.full
@pytest.mark.parametrize(
    ("backend", "data"),
    [
        # Without actors, which would take most of the time.
        ("multi_worker", "synthetic"),
        ("multi_worker", "cartpole:balance"),
        ("multi_worker_in_graph", "cartpole:balance"),
    ],
)
def test_two_workers_of_two_replicas_train_as_one_replica(
    backend, data, sweep, tmp_path
):
    """Four replicas match one before a number counts, as with a worker for each.

    In the full run, also with workers that serve one client, and with actors of each
    worker. Otherwise ``tests/conformance`` has two workers of two replicas,
    ``tests/harness/placement`` what a trial says of them, and a guide
    (``tests/howto``) measures d4pg in two workers.
    """
    done = sweep(
        "--workload=d4pg",
        f"--data={data}",
        "--preset=smoke",
        f"--backends={backend}",
        "--replicas=4",
        "--replicas-per-worker=2",
        "--mode=weak",
        "--order=sequential",
        "--repeats=1",
        "--controls=none",
        "--budget=none",
        "--json",
        timeout_sec=TIMEOUT_SEC,
    )
    assert 0 == done.returncode, done.stderr
    study = load_study(Store.open(tmp_path / "runs" / "s"))
    (entry,) = study.planned
    assert entry.trial is not None
    assert entry.trial.result is not None
    num_ranks = {"multi_worker": 2, "multi_worker_in_graph": 1}[backend]

    assert {SHARE_VARIABLE: "2"}.items() <= entry.spec.variables.items()
    assert num_ranks == len(entry.trial.result.ranks)
    assert [Outcome.MATCHES] == [match.outcome for match in study.matches]
    assert 1 == json.loads(done.stdout)["coverage"]["ok"]

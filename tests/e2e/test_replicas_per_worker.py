"""Trials whose workers run several replicas each, with TensorFlow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from harness.placement.processes import SHARE_VARIABLE
from results.matching import Outcome
from results.store import Store
from results.study import load_study

if TYPE_CHECKING:
    from pathlib import Path


TIMEOUT_SEC = 600

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("backend", "data"),
    [
        # Without actors, which would take most of the time.
        ("multi_worker", "synthetic"),
        pytest.param("multi_worker", "cartpole:balance", marks=pytest.mark.full),
        pytest.param(
            "multi_worker_in_graph", "cartpole:balance", marks=pytest.mark.full
        ),
    ],
)
def test_two_workers_of_two_replicas_train_as_one_replica(
    backend: str, data: str, sweep: Any, tmp_path: Path
) -> None:
    """Four replicas match one before a number counts, as with a worker for each.

    The full run adds workers that serve one client, and actors of each worker, which
    ``test_sweep_to_report.py`` has with one.
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

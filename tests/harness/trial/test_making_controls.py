"""The worker makes what a control leaves out, and programs of solo join no cluster."""

import json
import os
import sys
import types

import pytest
import synthetic_trial

from harness.trial import worker
from results.records.models import Control
from workloads.reused_batch import ReusingReplicator


@pytest.fixture
def created(monkeypatch):
    """Returns the calls of ``replicator.create``, which makes nothing."""
    calls = []

    def create(name, **options):
        calls.append((name, options))
        return "a replicator"

    module = types.SimpleNamespace(create=create)
    monkeypatch.setitem(sys.modules, "replicator", module)
    return calls


@pytest.mark.parametrize(
    ("control", "is_without_communication"),
    [(Control.NONE, False), (Control.TWIN, False), (Control.NOSYNC, True)],
)
def test_only_nosync_is_without_communication(
    created, make_spec, control, is_without_communication
):
    """A twin is the case itself."""
    assert "a replicator" == worker._create(make_spec(control=control))
    options = {
        "num_replicas": 2,
        "without_communication": is_without_communication,
    }
    assert [("in_graph", options)] == created


@pytest.mark.parametrize(
    ("backend", "control", "takes"),
    [
        ("in_graph", Control.NONE, True),
        ("multi_worker", Control.NONE, True),
        ("multi_worker_in_graph", Control.NONE, True),
        ("single", Control.SOLO, False),
        ("tf_mirrored", Control.NONE, False),
    ],
)
def test_the_policy_for_writes_reaches_backends_that_look_for_them(
    created, make_spec, backend, control, takes
):
    """Others have nothing to look for, and no such option."""
    options = {"external_writes": "never"}
    worker._create(make_spec(backend=backend, control=control, options=options))

    ((_, given),) = created
    assert takes == ("external_writes" in given)
    assert "never" == given.get("external_writes", "never")


def test_synthetic_repeats_its_first_batch(created, make_spec):
    """All else is that of the case."""
    made = worker._create(make_spec(control=Control.SYNTHETIC))

    assert isinstance(made, ReusingReplicator)
    assert "a replicator" == made.original
    assert 2 == created[0][1]["num_replicas"]


def test_a_program_of_solo_has_one_replica(created, make_spec):
    """The number of replicas of the trial is that of its programs."""
    worker._create(make_spec(backend="single", control=Control.SOLO))

    assert [("single", {"num_replicas": 1})] == created


def test_a_program_of_solo_knows_its_rank_and_no_cluster(
    tmp_path, make_spec, monkeypatch
):
    """It is started like a member of a cluster, and would wait for the others."""
    spec = make_spec(backend="single", control=Control.SOLO)
    env = synthetic_trial.environment(spec, "5f0c")
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "env.json").write_text(env.model_dump_json())
    task = {"type": "worker", "index": 1}
    addresses = {"worker": ["localhost:20001", "localhost:20002"]}
    config = json.dumps({"cluster": addresses, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)
    seen = []
    monkeypatch.setattr(
        worker,
        "measure_spec",
        lambda *_, **__: seen.append("TF_CONFIG" in os.environ),
    )
    monkeypatch.setattr(worker.die_with_parent, "beat", lambda _write: None)

    assert 0 == worker.main([str(tmp_path)])
    assert [False] == seen
    assert (tmp_path / "rank_1.jsonl").exists()

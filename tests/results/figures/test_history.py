"""A series is one case on one machine class; its changes are found where they are."""

import json

import numpy as np
import pytest

from results.figures.history import History, history, machine_class
from results.records.models import TrialStatus
from results.store.study_store import Store
from results.study.cases import load_study

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOISE = 0.01


@pytest.fixture
def make_studies(tmp_path, synthetic):
    """Returns a function that makes studies of one case, a day apart.

    It takes how fast each one is, and replaces fields of the machine of some.
    """

    def make(factors, machines=None):
        shape = synthetic.Shape(
            backends=("in_graph",),
            modes=(synthetic.WEAK,),
            replicas=(1,),
            repeats=2,
            is_evaluated=False,
        )
        for index, factor in enumerate(factors):
            root = synthetic.make_store(tmp_path / f"study-{index:02}", shape).root
            for path in root.glob("trials/*/*.json"):
                fields = json.loads(path.read_text())
                if path.name == "result.json":
                    fields["window_sec"] /= factor
                if path.name == "status.json":
                    fields["started_at"] = f"2026-01-{index + 1:02}T12:00:00+00:00"
                if path.name == "env.json":
                    fields["machine_state"] = {
                        "git_commit": f"{index:x}{COMMIT[1:]}",
                        "is_source_modified": index == 1,
                    }
                    fields |= (machines or {}).get(index, {})
                path.write_text(json.dumps(fields))
        roots = sorted(tmp_path.glob("study-*"), reverse=True)
        return [load_study(Store.open(root)) for root in roots]

    return make


def factors(length):
    return np.exp(np.random.default_rng(1).normal(0, NOISE, length))


def test_machines_are_never_compared(make_studies):
    """The last six ran on a faster CPU: two series."""
    values = factors(14)
    values[8:] *= 3
    faster = {index: {"cpu_model": "Faster CPU"} for index in range(8, 14)}
    found = history(make_studies(values, faster)).series

    assert sorted([8, 6]) == sorted(len(series.observations) for series in found)
    assert 2 == len({series.machine for series in found})
    assert {"Synthetic CPU @ 2.00GHz", "Faster CPU"} == {
        series.machine_name.split(",")[0] for series in found
    }


@pytest.mark.parametrize(
    ("fields", "is_same"),
    [
        ({"packages": {"tensorflow": "2.21.0", "replicator-harness": "9"}}, True),
        ({"packages": {"tensorflow": "2.22.0"}}, False),
        ({"load_average_before": 9.0, "fingerprint": "0"}, True),
        ({"kernel": "Linux 7"}, False),
        ({"gpus": ("A GPU",)}, False),
        ({"memory_bytes": 2**40}, False),
    ],
)
def test_what_a_machine_class_is(make_studies, fields, *, is_same):
    """Hardware, kernel and packages; neither load nor the version of this package."""
    (study,) = make_studies([1.0])
    env = study.entries[0].trial.env
    env = env.model_copy(update={"packages": {"tensorflow": "2.21.0"}})
    other = env.model_copy(update=fields)

    assert is_same == (machine_class(env) == machine_class(other))


def test_what_has_no_place_in_a_series_is_said(tmp_path, synthetic):
    """A case without an ok trial, and one whose trials ran on two machines."""
    shape = synthetic.Shape(
        backends=("in_graph", "tf_mirrored"),
        modes=(synthetic.WEAK,),
        replicas=(1,),
        repeats=2,
        statuses={
            ("in_graph", synthetic.WEAK, 1, r): TrialStatus.FAILED for r in (0, 1)
        },
    )
    store = synthetic.make_store(tmp_path / "study", shape)
    study = load_study(store)
    (mirrored,) = (case for case in study.cases if case.spec.backend != "in_graph")
    path = store.trial_dir(mirrored.entries[0].trial_id) / "env.json"
    fields = json.loads(path.read_text()) | {"kernel": "Linux 7"}
    path.write_text(json.dumps(fields))
    found = history([load_study(store)])

    assert History(series=(), left_out=found.left_out) == found
    assert [
        "resnet50-laptop-synthetic, in_graph, 1 replica x 8: no trial is ok",
        (
            "resnet50-laptop-synthetic, tf_mirrored, 1 replica x 8: "
            "its trials ran on 2 machine classes"
        ),
    ] == list(found.left_out)

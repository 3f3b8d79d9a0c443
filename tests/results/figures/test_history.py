"""A series is one case on one machine class; its changes are found where they are."""

import dataclasses
import json
import types

import numpy as np
import pytest
from loads import QUIET
from relay_study import RelayShape, make_store

from harness.machine.disturbance import void_reason
from reports.view.view import view_store
from reports.words import trust
from results.figures import lost_time
from results.figures.history import History, history, machine_class
from results.figures.relay import _without_numbers, count_turns
from results.records.measuring import Turn
from results.records.models import TrialStatus
from results.store.study_store import Store
from results.study.cases import load_study

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOISE = 0.01


@pytest.fixture
def make_studies(tmp_path, synthetic):
    """Returns a function that makes studies of one case, a day apart."""

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


@pytest.mark.parametrize(
    ("fields", "num_retraces", "expected"),
    [
        (
            [{"foreign_cpu_fraction": value} for value in (0.12, 0.9)],
            0,
            "other processes used more than 3 % of its cores",
        ),
        (
            [{"foreign_cpu_fraction": v, "num_cores": 16} for v in (0.02, 0.028)],
            0,
            "other processes used more than 13 % of one core of its 16, if all on one",
        ),
        (
            [{"stolen_cpu_fraction": value} for value in (0.02, 0.5)],
            0,
            "the hypervisor gave more than 1 % of its cores to other guests",
        ),
        (
            [{"num_throttled": value} for value in (1, 7)],
            0,
            "its cores were throttled",
        ),
        ([{}], 1, "its step function was retraced"),
        ([{}], 4, "its step function was retraced"),
    ],
)
def test_the_limit_stands_in_place_of_what_was_measured(fields, num_retraces, expected):
    for changes in fields:
        exact = {"foreign_resolution": 0.0, "stolen_resolution": 0.0}
        load = dataclasses.replace(QUIET, **exact | changes)
        assert expected == _without_numbers(void_reason(load, num_retraces))


def _turn(round_index, *, attempt=0, reason=""):
    return Turn(
        round_index=round_index,
        attempt=attempt,
        start_ns=0,
        end_ns=1,
        num_steps=1,
        void_reason=reason,
    )


def test_a_turn_that_stayed_void_is_counted():
    """Three attempts of one turn are void, and one of another, which was repeated."""
    turns = [
        *(_turn(0, attempt=number, reason="noise") for number in range(3)),
        _turn(1, reason="noise"),
        _turn(1, attempt=1),
        _turn(2),
    ]
    result = types.SimpleNamespace(turns=turns)
    entry = types.SimpleNamespace(trial=types.SimpleNamespace(result=result))
    counts = count_turns(types.SimpleNamespace(planned=[entry]))

    assert (6, 4, 1) == (counts.num_turns, counts.num_void, counts.num_lost)
    assert (
        "4 of 6 turns are void: in 4 of them noise. Such a turn is repeated up to"
        " twice; 1 turn had no valid attempt."
    ) == trust.void_turns(counts)
    all_repeated = dataclasses.replace(counts, num_void=1, num_lost=0)
    assert trust.void_turns(all_repeated).startswith("1 of 6 turns is void: ")
    assert trust.void_turns(all_repeated).endswith("; each then had a valid one.")


def _view(root, **fields):
    shape = RelayShape(controls=(), **fields)
    return view_store(make_store(root, shape))


def _said(view):
    return [s for s in trust.sentences(view) if "step" in s]


def test_what_a_first_step_takes_more_is_found(tmp_path):
    """8 % in turns of three steps, over generations; void turns do not count."""
    view = _view(tmp_path, first_step=1.08)
    found = [lost_time.of_case(case) for case in view.measured_cases]

    assert 2 == len(found)
    for of in found:
        assert of is not None
        assert of.ratio is not None
        assert 1.08 == pytest.approx(of.ratio.value)
        assert 4 == of.ratio.n
        assert 0.08 / 3 == pytest.approx(of.part)
    (said,) = _said(view)
    assert said.startswith("in_graph, 1 replica x 8: the first step of a turn is ")
    assert "8.0\N{NARROW NO-BREAK SPACE}% [8.0" in said
    assert "] longer than its others" in said
    assert said.endswith("+2.7\N{NARROW NO-BREAK SPACE}% of a turn of 3 steps.")


def test_turns_of_one_step_cannot_tell(tmp_path):
    """Nothing is claimed where nothing can be seen."""
    view = _view(tmp_path, first_step=1.08, steps_per_turn=(1,))
    found = lost_time.of_case(view.measured_cases[0])

    assert found is not None
    assert (None, 1, 1, 0.0) == (found.ratio, found.fewest, found.most, found.part)
    assert [] == _said(view)


def test_a_study_of_before_says_that_its_turns_are_unlike(tmp_path):
    """Each process chose its own number of steps."""
    view = _view(tmp_path, first_step=1.08, steps_per_turn=(1, 2))
    excess, single, unlike = _said(view)

    assert "of a turn of 1 to 2 steps." in excess
    assert single.startswith("Some turns of 2 of 2 cases are one step, the first: ")
    assert unlike.startswith("In 2 of 2 cases the number of steps per turn differs")
    assert "(1 to 2)" in unlike

"""Turns: why they are void, and what the first step of one takes more."""

import dataclasses
import types

import pytest
from loads import QUIET
from relay_study import RelayShape, make_store

from harness.machine.disturbance import void_reason
from reports.view.view import view_store
from reports.words import trust
from results.figures import lost_time
from results.figures.relay import _without_numbers, count_turns
from results.records.measuring import Turn


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

"""What the first step of a turn takes more: known, found, and said."""

import pytest
from relay_study import RelayShape, make_store

from reports.view.view import view_store
from reports.words import trust
from results.figures import first_steps


def _view(root, **fields):
    shape = RelayShape(controls=(), **fields)
    return view_store(make_store(root, shape))


def _said(view):
    return [s for s in trust.sentences(view) if "step" in s]


def test_what_a_first_step_takes_more_is_found(tmp_path):
    """8 % in turns of three steps, over generations; void turns do not count."""
    view = _view(tmp_path, first_step=1.08)
    found = [first_steps.of_case(case) for case in view.measured_cases]

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
    found = first_steps.of_case(view.measured_cases[0])

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

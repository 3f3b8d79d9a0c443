"""What quality runs reach, and when; more replicas are compared with the fewest."""

import dataclasses
import math
import re
import statistics

import pytest
from command_lines import visible

from reports import render_section, view_store
from results import points_frame


@pytest.fixture(scope="module")
def view_of(make, synthetic):
    fields = {"backends": ("in_graph",), "repeats": 1, "budget": synthetic.LEARNING}
    return lambda number: view_store(make(**fields, num_learning_runs=number))


@pytest.fixture(scope="module")
def view(view_of):
    return view_of(5)


@pytest.fixture(scope="module")
def study(view):
    return view.study


def gains_of(study):
    """Rows of the frame, by number of replicas and quantity."""
    rows = points_frame(study).query("figure == 'gains'").itertuples()
    return {(row.num_replicas, row.quantity): row for row in rows}


def missed(view, study):
    """How many equal cases the page says to miss the target, by chance."""
    shown = visible(render_section("learning", dataclasses.replace(view, study=study)))
    return float(re.search(r"Of equal cases ([\d.]+) % seem not", shown)[1]) / 100


def case_of(study, num_replicas):
    (found,) = (c for c in study.quality_runs if c.spec.num_replicas == num_replicas)
    return found


def reached(study, num_replicas):
    entries = case_of(study, num_replicas).ok_entries
    return sorted(entry.result.curve[-1].quality[0].value for entry in entries)


def with_failed(study, num_replicas, numbers):
    """Returns the study where some quality runs of a case failed, from the worst on."""
    ordered = sorted(
        case_of(study, num_replicas).ok_entries,
        key=lambda entry: entry.result.curve[-1].quality[0].value,
    )
    ids = {ordered[number].trial_id for number in numbers}
    entries = (
        dataclasses.replace(entry, state="failed", reason="nan")
        if entry.trial_id in ids
        else entry
        for entry in study.entries
    )
    return dataclasses.replace(study, entries=tuple(entries))


def test_more_replicas_are_compared_with_the_fewest(view, study):
    found = gains_of(study)
    better = found[2, "better"]
    pairs = [
        1.0 if a > b else 0.5 * (a == b)
        for a in reached(study, 2)
        for b in reached(study, 1)
    ]

    target = f"top_1 of at least {min(reached(study, 1)):g}"
    assert target == found[1, "seconds"].protocol
    assert missed(view, study) < 0.1
    assert "reached by 5 of 5 runs" == found[1, "examples"].caveats
    assert (5, 5) == (found[1, "seconds"].n, found[2, "seconds"].n)
    assert "s" == found[1, "seconds"].unit
    assert (1, "better") not in found
    assert pytest.approx(statistics.mean(pairs)) == better.value
    assert better.low < better.value


def test_a_metric_of_unknown_direction_is_not_compared(study, view_of):
    facts = study.metrics["top_1"].model_copy(update={"is_higher_better": None})
    for metrics in ((facts,), ()):
        plan = study.plan.model_copy(update={"metrics": metrics})
        assert {} == gains_of(dataclasses.replace(study, plan=plan))
    assert {} == gains_of(view_of(2).study)


@pytest.mark.parametrize("num_failed", [1, 3])
def test_a_run_that_failed_is_worse_than_any_other(study, num_failed):
    was, now, best = (
        gains_of(of)
        for of in (
            study,
            with_failed(study, 2, range(num_failed)),
            with_failed(study, 2, range(5 - num_failed, 5)),
        )
    )

    better, seconds = now[2, "better"], now[2, "seconds"]
    assert better.value <= was[2, "better"].value
    assert best[2, "better"].value < was[2, "better"].value
    assert (5, 5) == (better.n, seconds.n)
    (num_reached,) = re.findall(r"reached by (\d) of 5 runs", seconds.caveats)
    assert int(num_reached) <= 5 - num_failed
    assert math.isnan(seconds.value) is (num_failed > 2)


def test_a_target_of_runs_of_which_some_failed_says_what_it_is_worth(view, study):
    changed = with_failed(study, 1, range(3))
    found = gains_of(changed)

    assert missed(view, changed) > 0.5
    assert f"top_1 of at least {reached(study, 1)[3]:g}" == found[1, "seconds"].protocol

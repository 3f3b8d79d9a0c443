"""Intervals of headline figures are what the statistics of pages say, by other code."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import study_files

from results import Store, load_study
from results.statistics import estimates
from results.verify import check as check_lib
from results.verify import trials
from results.verify.check import Check


def same(stated, figure):
    """Whether two figures are equal, to twelve digits."""
    factor = 1.1 if "widened" in stated.method else 1.0
    halves = [] if figure.half is None else [-figure.half, figure.half]
    derived = [math.exp(figure.centre + factor * half) for half in (0.0, *halves)]
    numbers = [of for of in (stated.value, stated.low, stated.high) if of is not None]
    return (derived, figure.n) == (pytest.approx(numbers, rel=1e-12), stated.n)


def drawn(numbers, spread=0.0):
    """Logs of repetitions of so many rounds each."""
    generator = np.random.default_rng(9)
    return [
        list(generator.normal(generator.normal(0, spread), 0.1, number))
        for number in numbers
    ]


@pytest.mark.parametrize(
    ("stated", "logs"),
    [
        # Geometric mean and Student's interval of repetitions.
        *(
            (
                lambda of: estimates.geometric_mean(np.exp(np.ravel(of)), unit=""),
                [1] * n,
            )
            for n in (1, 2, 10)
        ),
        # Batches of consecutive rounds.
        *(
            (lambda of: estimates.these_processes_only(of[0]), [n])
            for n in (1, 4, 5, 20, 23, 1000)
        ),
        # Repetitions of unlike numbers of rounds.
        (estimates.over_rounds, [1, 5, 9, 20]),
        # Widened from six on.
        *(
            (lambda of: estimates.over_rounds(of, is_stopped_on_width=True), [1] * n)
            for n in (5, 6)
        ),
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_intervals_are_what_other_code_says(stated, logs, spread):
    made = drawn(logs, spread)

    assert same(stated(made), check_lib.over_rounds(made))


@pytest.fixture(scope="module")
def published():
    """Returns a published study of two backends in both modes, and its raw trials."""
    store = Store.open(study_files.published("resnet50-two-cores"))
    study = load_study(store)
    return study, trials.compare(store, study.entries, Check())


def compared(study, raws):
    """Compares headline figures, without equivalence checks."""
    check = Check()
    check_lib.compare_headlines(study, raws, {}, check)
    return check


def of_two_replicas(study):
    """Returns a trial of the first case of two replicas."""
    case = next(case for case in study.cases if case.spec.num_replicas == 2)
    return case.ok_entries[0].trial_id


def test_a_longer_block_differs_in_each_figure_of_its_case(published):
    study, raws = published
    assert not compared(study, raws).differences
    trial_id = of_two_replicas(study)
    raw = raws[trial_id]._replace(result=copy.deepcopy(raws[trial_id].result))
    block = next(block for block in raw.result["blocks"] if not block["is_discarded"])
    block["end_ns"] += 1000
    check = compared(study, {**raws, trial_id: raw})
    kinds = {item.kind for item in check.differences}

    ratios = {check_lib.RATIO, check_lib.CONTROL}
    assert {*check_lib.OF_CASES} | ratios == kinds
    assert len(check.differences) < check.num_recomputed(*check_lib.KINDS) / 2


def test_a_trial_without_raw_observations_is_not_taken_for_verified(published):
    study, raws = published
    trial_id = of_two_replicas(study)
    check = compared(study, {k: raw for k, raw in raws.items() if k != trial_id})
    named = f"trial {trial_id} has no raw observations"

    assert not check.differences
    assert sum(named in reason for reason in check.missing) >= 3

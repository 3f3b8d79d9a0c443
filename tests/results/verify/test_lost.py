"""Parts of steps are computed a second time from raw turns, and compared."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import published_studies
import pytest

from results.store.study_store import Store
from results.study.cases import load_study
from results.verify import lost
from results.verify.check import Check
from results.verify.raw_trial import read_trial

if TYPE_CHECKING:
    from results.study.cases import Study
    from results.verify.raw_trial import RawTrial

PUBLISHED = published_studies.study("resnet50-two-cores")


@pytest.fixture(scope="module")
def study() -> Study:
    """A published relay of two backends in both modes."""
    return load_study(Store.open(PUBLISHED))


@pytest.fixture(scope="module")
def raws(study: Study) -> dict[str, RawTrial]:
    """What its files of raw observations say."""
    folder = PUBLISHED / "trials"
    return {
        entry.trial_id: read_trial(folder / entry.trial_id, entry.spec.num_warmup_steps)
        for case in study.cases
        for entry in case.ok_entries
    }


def _compared(study: Study, raws: dict[str, RawTrial]) -> Check:
    check = Check()
    lost.compare(study, raws, check)
    return check


def test_the_parts_of_a_published_study_are_those_of_its_raw_turns(
    study: Study, raws: dict[str, RawTrial]
) -> None:
    """Five parts, the step and the loss of four cases, to 1e-9 of the step."""
    check = _compared(study, raws)

    assert not check.differences
    assert not check.missing
    assert 4 * 7 == check.num_recomputed


def test_a_turn_with_another_load_is_noticed(
    study: Study, raws: dict[str, RawTrial]
) -> None:
    """In the parts that it is in, and in no other."""
    case = next(c for c in study.cases if c.spec.num_replicas > 1)
    trial_id = case.ok_entries[0].trial_id
    result = copy.deepcopy(raws[trial_id].result)
    for turn in result["turns"]:
        turn["run_delay_sec"] = 0.0
    changed = {**raws, trial_id: dataclasses.replace(raws[trial_id], result=result)}
    places = {
        item.where.partition(" of ")[0]
        for item in _compared(study, changed).differences
    }

    assert {"core_wait", "unexplained"} == places


def test_a_trial_without_raw_turns_is_not_taken_for_verified(
    study: Study, raws: dict[str, RawTrial]
) -> None:
    """It is named as missing."""
    case = next(c for c in study.cases if c.spec.num_replicas > 1)
    trial_id = case.ok_entries[0].trial_id
    check = _compared(study, {k: v for k, v in raws.items() if k != trial_id})

    assert any(trial_id in reason for reason in check.missing)

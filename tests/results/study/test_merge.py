"""Merging stores: nothing twice, nothing lost, nothing that is not of one study."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from results import errors
from results.records.models import TrialStatus
from results.store import seal
from results.store.study_store import Store
from results.study import merge
from results.study.cases import load_study

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Parts = Callable[..., list[Store]]


def files_of(root: pathlib.Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != seal.SEAL_NAME  # in the order of writing
    }


def sealed_in(root: pathlib.Path) -> dict[str, Any]:
    """What the seal of a study says of each of its parts."""
    found = seal.read(root)
    assert found is not None
    return {line["of"]: line["files"] for line in found[0]}


def roots_of(stores: list[Store]) -> list[pathlib.Path]:
    """Their directories."""
    return [store.root for store in stores]


def test_the_parts_of_a_study_become_the_study(
    tmp_path: pathlib.Path, whole: Store, parts: Parts
) -> None:
    """Every file of every trial, failures included, and the same figures."""
    merged = merge.merge(roots_of(parts()), tmp_path / "merged")

    assert files_of(whole.root) == files_of(merged.root)
    assert (12, 0, 0) == (
        merged.num_trials,
        merged.num_matching,
        merged.num_unfinished,
    )
    assert load_study(whole) == load_study(Store.open(merged.root))


def test_the_order_of_the_stores_changes_no_byte(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """Plans that were made at different times, in every order of three stores."""
    stores = parts()
    for hour, store in enumerate(stores):
        plan = store.read_plan()
        trials = plan.trials[hour:] + plan.trials[:hour]
        store.write_plan(
            plan.model_copy(
                update={
                    "created_at": f"2025-01-01T0{(5 * hour) % 3}:00:00Z",
                    "command": ("sweep", str(hour)),
                    "trials": trials,
                }
            )
        )
    found = [
        files_of(merge.merge(roots_of(list(order)), tmp_path / f"merged_{place}").root)
        for place, order in enumerate(itertools.permutations(stores))
    ]

    assert 6 == len(found)
    assert all(files == found[0] for files in found)
    assert ["sweep", "0"] == json.loads(found[0]["plan.json"])["command"]


def test_parts_of_a_plan_become_one_plan(tmp_path: pathlib.Path, parts: Parts) -> None:
    """Each machine planned its own trials; the fewest replicas are the baseline."""
    stores = parts(2)
    everything = stores[0].read_plan()
    for store, num_replicas in zip(stores, (2, 1), strict=True):
        own = [t for t in everything.trials if t.spec.num_replicas == num_replicas]
        store.write_plan(
            everything.model_copy(
                update={"trials": tuple(own), "baseline_num_replicas": num_replicas}
            )
        )
    merged = merge.merge(roots_of(stores), tmp_path / "merged")
    plan = Store.open(merged.root).read_plan()

    assert 1 == plan.baseline_num_replicas
    assert {t.trial_id for t in everything.trials} == {t.trial_id for t in plan.trials}


def test_shards_of_a_study_become_the_study(
    tmp_path: pathlib.Path, whole: Store, parts: Parts
) -> None:
    """The jobs of an array measure parts of the repetitions, each in its own study."""
    stores = parts(2)
    everything = whole.read_plan()
    for number, store in enumerate(stores, start=1):
        own = [t for t in everything.trials if t.trial_id in store.trial_ids()]
        assert own
        name = f"{everything.study}-shard-{number}-of-2"
        changes = {"trials": tuple(own), "study": name, "repeats": 1}
        store.write_plan(everything.model_copy(update=changes))
    merged = merge.merge(roots_of(stores), tmp_path / "merged")
    plan = Store.open(merged.root).read_plan()

    assert (everything.study, everything.repeats) == (plan.study, plan.repeats)
    assert {t.trial_id for t in everything.trials} == {t.trial_id for t in plan.trials}


def test_a_trial_that_another_store_finished_is_no_conflict(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """A sweep was interrupted on one machine, and continued on the other."""
    stores = parts(2)
    trial_id = stores[0].trial_ids()[0]
    shutil.copytree(stores[0].trial_dir(trial_id), stores[1].trial_dir(trial_id))
    (stores[1].trial_dir(trial_id) / "status.json").unlink()
    merged = merge.merge(roots_of(stores), tmp_path / "merged")

    assert (12, 0) == (merged.num_trials, merged.num_unfinished)


def test_unfinished_trials_are_left_out_and_counted(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """They have no result; the merged study is resumed to measure them."""
    stores = parts(2)
    trial_id = stores[0].trial_ids()[0]
    (stores[0].trial_dir(trial_id) / "status.json").unlink()
    merged = merge.merge(roots_of(stores), tmp_path / "merged")

    assert (11, 1) == (merged.num_trials, merged.num_unfinished)
    assert not Store.open(merged.root).trial_dir(trial_id).exists()


def test_every_machine_may_match_replicas(
    tmp_path: pathlib.Path, parts: Parts, whole: Store
) -> None:
    """These trials are not timed; of several, one that is not ok is kept."""
    stores = parts(2)
    failed = next(
        t for t in whole.trials() if t.status and t.status.status is TrialStatus.FAILED
    )
    good = next(
        t for t in whole.trials() if t.status and t.status.status is TrialStatus.OK
    )
    for number, store in enumerate(stores):
        for trial in (failed, good):
            target = store.matching.trial_dir(trial.trial_id)
            shutil.copytree(whole.trial_dir(trial.trial_id), target)
            if trial is good:
                (target / "stdout.log").write_text(str(number))
    found = [
        merge.merge(roots_of(order), tmp_path / f"merged_{place}")
        for place, order in enumerate((stores, stores[::-1]))
    ]

    assert [2, 2] == [merged.num_matching for merged in found]
    assert files_of(found[0].root) == files_of(found[1].root)
    kept = Store.open(found[0].root).matching.read_trial(failed.trial_id)
    assert TrialStatus.FAILED is kept.status.status


def test_a_failure_half_way_leaves_everything_as_it_was(
    tmp_path: pathlib.Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after some files: no output, no rest, and it can be repeated."""
    stores = parts(2)
    before = [files_of(store.root) for store in stores]
    copied = []

    def copy_some(source: pathlib.Path, target: pathlib.Path) -> None:
        if len(copied) == 10:
            raise OSError(28, "No space left on device")
        copied.append(target.write_bytes(source.read_bytes()))

    with monkeypatch.context() as patched:
        patched.setattr(merge.shutil, "copyfile", copy_some)
        with pytest.raises(
            errors.WriteStoreError,
            match=r"cannot write '.*merged': No space left .*the stores are unchanged",
        ):
            merge.merge(roots_of(stores), tmp_path / "merged")

    assert 10 == len(copied)
    assert before == [_without_lock(files_of(store.root)) for store in stores]
    assert not [path for path in tmp_path.iterdir() if "merg" in path.name]
    assert 12 == merge.merge(roots_of(stores), tmp_path / "merged").num_trials


def test_what_a_killed_merge_left_is_removed(
    tmp_path: pathlib.Path, parts: Parts, whole: Store
) -> None:
    """It was never the output, and must not become part of it."""
    rest = tmp_path / ".merging-merged" / "study" / "trials" / ("0" * 20)
    rest.mkdir(parents=True)
    (rest / "spec.json").write_text("{")
    merged = merge.merge(roots_of(parts(2)), tmp_path / "merged")

    assert files_of(whole.root) == files_of(merged.root)
    assert sealed_in(whole.root) == sealed_in(merged.root)
    assert not (tmp_path / ".merging-merged").exists()


def test_a_store_of_others_is_only_read(
    tmp_path: pathlib.Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this user cannot write, no lock is needed, and none is tried."""
    stores = parts(2)
    writable = os.access

    def access(path: Any, mode: int) -> bool:
        return "machine_" not in str(path) and writable(path, mode)

    monkeypatch.setattr(merge.os, "access", access)

    assert 12 == merge.merge(roots_of(stores), tmp_path / "merged").num_trials
    assert not (stores[0].root / ".lock").exists()


def _without_lock(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != ".lock"}

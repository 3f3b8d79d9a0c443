"""Merging stores: nothing twice, nothing lost, nothing that is not of one study."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from results import errors, merge
from results.lock import lock_study
from results.records import TrialStatus
from results.store import Store
from results.study import load_study

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Parts = Callable[..., list[Store]]


def files_of(root: pathlib.Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def whole(tmp_path: pathlib.Path, synthetic: Any) -> Store:
    """A study of twelve trials, one of which failed."""
    shape = synthetic.Shape(
        modes=(synthetic.WEAK,),
        statuses={("in_graph", synthetic.WEAK, 2, 1): TrialStatus.FAILED},
    )
    return synthetic.make_store(tmp_path / "whole", shape)


@pytest.fixture
def parts(tmp_path: pathlib.Path, whole: Store) -> Parts:
    """Deals the trials of a study to stores of several machines, in turn."""

    def deal(count: int = 3, *, store: Store = whole) -> list[Store]:
        stores = []
        for place in range(count):
            root = tmp_path / f"machine_{place}" / "study"
            part = Store.create(root)
            shutil.copy(store.root / "plan.json", root)
            for trial_id in store.trial_ids()[place::count]:
                shutil.copytree(store.trial_dir(trial_id), part.trial_dir(trial_id))
            stores.append(part)
        return stores

    return deal


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


def test_a_trial_of_two_stores_is_an_error(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """It names both stores and the trial, and writes nothing."""
    stores = parts(2)
    trial_id = stores[0].trial_ids()[0]
    shutil.copytree(stores[0].trial_dir(trial_id), stores[1].trial_dir(trial_id))

    with pytest.raises(
        errors.MergeError,
        match=rf"trial {trial_id} is finished in '.*machine_0.*' and in '.*machine_1.*'"
        r", and a trial has one result; remove its folder",
    ):
        merge.merge(roots_of(stores), tmp_path / "merged")
    assert not [path for path in tmp_path.iterdir() if "merg" in path.name]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"name": "other"},
            r"is of study 'resnet50-laptop-synthetic', '.*' is of study 'other'",
        ),
        ({"workload_version": "2"}, r"has workload_version '1' in .*, '2' in .*"),
        ({"num_measured_steps": 17}, r"has num_measured_steps 16 in .*, 17 in "),
        (
            {"baseline_batch_size": 16},
            r"has per_replica_batch_size of weak scaling 8 in .*, 16 in .*: these are",
        ),
    ],
)
def test_another_study_is_refused(
    tmp_path: pathlib.Path, whole: Store, synthetic: Any, changes: Any, message: str
) -> None:
    """The first difference is named, with both stores."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), replicas=(4,), **changes)
    other = synthetic.make_store(tmp_path / "xother", shape)
    plan = other.read_plan()
    later = {"created_at": "2026-01-01T00:00:00Z"}
    other.write_plan(plan.model_copy(update=later))

    with pytest.raises(errors.MergeError, match=message):
        merge.merge([whole.root, other.root], tmp_path / "merged")


def test_other_code_is_refused(tmp_path: pathlib.Path, parts: Parts) -> None:
    """Results of different code are not mixed."""
    stores = parts(2)
    plan = stores[1].read_plan()
    spec = plan.trials[0].spec.model_copy(update={"code_digest": "beef" * 5})
    from results import identity

    trial_id, case_id = identity.ids(spec)
    trial = plan.trials[0].model_copy(
        update={"spec": spec, "trial_id": trial_id, "case_id": case_id}
    )
    stores[1].write_plan(plan.model_copy(update={"trials": (trial,)}))

    with pytest.raises(
        errors.MergeError,
        match=r"has the code of in_graph (beef|c0de)+ in .*, (beef|c0de)+ in ",
    ):
        merge.merge(roots_of(stores), tmp_path / "merged")


def test_unlike_machines_never_share_a_figure(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """The message names the stores, both machines and what differs."""
    stores = parts(2)
    for trial_id in stores[1].trial_ids():
        path = stores[1].trial_dir(trial_id) / "env.json"
        env = json.loads(path.read_text())
        env |= {"cpu_model": "Another CPU", "fingerprint": "0" * 20}
        path.write_text(json.dumps(env))

    with pytest.raises(
        errors.MergeError,
        match=r"machine_\d.* were measured on unlike machines \(.*Another CPU.*differ"
        r" in processor .*Another CPU.*keep one study per kind of machine",
    ):
        merge.merge(roots_of(stores), tmp_path / "merged")


def test_a_generation_of_a_relay_is_not_put_together(
    tmp_path: pathlib.Path, synthetic: Any, parts: Parts
) -> None:
    """Its trials took turns on one machine; whole generations may come from several."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), num_rounds=4, repeats=2)
    relay = synthetic.make_store(tmp_path / "relay", shape)
    stores = parts(2, store=relay)

    with pytest.raises(
        errors.MergeError,
        match=r"generation \d of the relay is partly in '.*' and partly in '.*';?",
    ):
        merge.merge(roots_of(stores), tmp_path / "merged")

    for store in stores:
        shutil.rmtree(store.root / "trials")
        (store.root / "trials").mkdir()
    for trial in relay.trials():
        store = stores[trial.spec.repetition_index]
        shutil.copytree(
            relay.trial_dir(trial.trial_id), store.trial_dir(trial.trial_id)
        )
    merged = merge.merge(roots_of(stores), tmp_path / "merged")

    assert files_of(relay.root) == files_of(merged.root)


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
    assert not (tmp_path / ".merging-merged").exists()


def test_a_store_in_use_is_not_merged(tmp_path: pathlib.Path, parts: Parts) -> None:
    """A sweep is writing into it."""
    stores = parts(2)

    with (
        lock_study(stores[1].root),
        pytest.raises(errors.StudyLockedError, match=r"is in use by process \d+"),
    ):
        merge.merge(roots_of(stores), tmp_path / "merged")


def test_a_record_that_cannot_be_read_is_named(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """Merging it away would lose it."""
    stores = parts(2)
    path = stores[1].trial_dir(stores[1].trial_ids()[0]) / "result.json"
    path.write_text("{")

    with pytest.raises(
        errors.MergeError, match=r"result\.json' cannot be read: not JSON.*restore it"
    ):
        merge.merge(roots_of(stores), tmp_path / "merged")


def test_a_newer_schema_is_refused(tmp_path: pathlib.Path, parts: Parts) -> None:
    """Its records cannot be interpreted."""
    stores = parts(2)
    path = stores[1].root / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))

    with pytest.raises(errors.NewerSchemaError, match=r"newer version \(schema 99"):
        merge.merge(roots_of(stores), tmp_path / "merged")


def test_links_are_refused(tmp_path: pathlib.Path, parts: Parts) -> None:
    """A link could stand for any file of this machine."""
    stores = parts(2)
    folder = stores[1].trial_dir(stores[1].trial_ids()[0])
    (folder / "secret").symlink_to("/etc/hostname")

    with pytest.raises(errors.MergeError, match=r"secret' is not a regular file"):
        merge.merge(roots_of(stores), tmp_path / "merged")
    assert not [path for path in tmp_path.iterdir() if "merg" in path.name]


def test_requests_that_cannot_be_meant_are_explained(
    tmp_path: pathlib.Path, parts: Parts
) -> None:
    """One store, one twice, and outputs that would destroy something."""
    first, second = roots_of(parts(2))
    (tmp_path / "file").write_text("x")
    for roots, output, message in (
        ([first], "merged", r"only 1 store is given; name at least 2"),
        ([first, first], "merged", r"is given twice; name every store once"),
        ([first, second], "machine_0", r"machine_0' exists; choose a new directory"),
        ([first, second], "machine_0/study/x", r"is inside of the store"),
        ([first, second], "file", r"file' exists; choose a new directory"),
    ):
        with pytest.raises(errors.MergeError, match=message):
            merge.merge(roots, tmp_path / output)


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

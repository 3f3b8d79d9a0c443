"""Stores that must not become one study: the message names two of them, and why."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from results import errors
from results.records import identity
from results.store.lock import lock_study
from results.store.study_store import Store
from results.study import merge

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Parts = Callable[..., list[Store]]


def roots_of(stores: list[Store]) -> list[pathlib.Path]:
    """Their directories."""
    return [store.root for store in stores]


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

    assert relay.trial_ids() == Store.open(merged.root).trial_ids()


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

"""The store: atomic, named problems, nothing newer or elsewhere; a study in a zip."""

import errno
import json
import os
import pathlib
import zipfile
from pathlib import Path

import published_studies
import pytest
from ended import ended_ids

from results import errors
from results.records import measuring, upgrade
from results.records.models import SCHEMA_VERSION, TrialStatus
from results.store import atomic, zipped
from results.store.study_store import Store


@pytest.fixture
def store(tmp_path, synthetic):
    """Two backends, one replica, one mode, two repetitions: four trials."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), replicas=(1,), repeats=2)
    return synthetic.make_store(tmp_path / "study", shape)


def _edit(path, **fields):
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **fields}))


def test_records_read_back_equal(tmp_path, store):
    copy = Store.create(tmp_path / "copy")
    copy.write_plan(store.read_plan())
    for trial in store.trials():
        copy.write_spec(trial.trial_id, trial.spec)
        copy.write_env(trial.trial_id, trial.env)
        copy.write_result(trial.trial_id, trial.result)
        copy.write_status(trial.trial_id, trial.status)

    assert list(store.trials()) == list(copy.trials())
    assert store.read_plan() == copy.read_plan()
    assert len(ended_ids(copy)) == 4
    assert copy.read().problems == ()


def test_writing_leaves_no_other_files(store):
    """Temporary files are gone, and records are as readable as any file."""
    folder = store.trial_dir(store.trial_ids()[0])
    names = sorted(path.name for path in folder.iterdir())
    mask = os.umask(0)
    os.umask(mask)

    assert names == ["env.json", "result.json", "spec.json", "status.json"]
    assert (folder / "spec.json").stat().st_mode & 0o777 == 0o666 & ~mask


def test_failed_write_keeps_the_old_record(store, monkeypatch):
    """The disk is full while writing: old bytes stay, the error says what to do."""
    trial = next(store.trials())
    path = store.trial_dir(trial.trial_id) / "status.json"
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        errors.WriteStoreError, match=r"cannot write .*No space left on device; free"
    ):
        store.write_status(
            trial.trial_id, trial.status.model_copy(update={"duration_sec": 99.0})
        )

    assert before == path.read_bytes()
    assert len(list(path.parent.iterdir())) == 4


def test_unfinished_and_empty_folders_are_not_finished(store):
    """What a killed harness leaves is read as not finished, never as corrupt."""
    first, second, *others = store.trial_ids()
    (store.trial_dir(first) / "status.json").unlink()
    for path in store.trial_dir(second).iterdir():
        path.unlink()

    assert ended_ids(store) == frozenset(others)
    assert store.read().problems == ()
    assert store.read_trial(first).status is None
    with pytest.raises(errors.MissingRecordError, match=f"no trial '{second}' in"):
        store.read_trial(second)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("result.json", "{", "not JSON: "),
        ("result.json", "[]", "holds a list, must hold an object"),
        ("status.json", "{}", "schema_version is None, must be an integer"),
        ("spec.json", '{"schema_version": 4}', "workload: Field required"),
        ("env.json", "\x00\xff", "not JSON"),
    ],
)
def test_corrupt_record_is_named_and_the_others_stay_readable(
    store, name, text, reason
):
    """One broken file costs one trial."""
    broken, *others = store.trial_ids()
    path = store.trial_dir(broken) / name
    path.write_text(text)
    (problem,) = store.read().problems

    assert path == problem.path
    assert problem.reason.startswith(reason)
    assert others == [trial.trial_id for trial in store.read().trials]
    with pytest.raises(
        errors.CorruptRecordError, match=r"corrupt record '.*': .*; the other records"
    ):
        store.read_trial(broken)


def test_edited_spec_no_longer_matches_its_name(store):
    """Identity is content: a changed spec is not that trial any more."""
    broken = store.trial_ids()[0]
    _edit(store.trial_dir(broken) / "spec.json", num_measured_steps=9999)
    (problem,) = store.read().problems

    assert f"the folder is named '{broken}'" in problem.reason


def test_record_of_another_trial_is_corrupt(store):
    """A result that was copied into the wrong folder is not used."""
    first, second, *_ = store.trial_ids()
    text = (store.trial_dir(second) / "result.json").read_text()
    (store.trial_dir(first) / "result.json").write_text(text)
    (problem,) = store.read().problems

    assert f"belongs to trial '{second}', lies in '{first}'" == problem.reason


def test_ok_without_result_is_corrupt(store):
    """A number that is said to exist must exist."""
    broken = store.trial_ids()[0]
    (store.trial_dir(broken) / "result.json").unlink()
    (problem,) = store.read().problems

    assert problem.reason == "missing, though the status is 'ok'"


def test_newer_version_is_refused(store):
    """Of a trial; each verb refuses that of a plan (``test_cli_sweeps.py``)."""
    _edit(store.trial_dir(store.trial_ids()[0]) / "result.json", schema_version=7)
    message = (
        r"result.json' was written by a newer version \(schema 7, this reads up to "
        rf"{SCHEMA_VERSION}\): upgrade replicator-harness"
    )
    with pytest.raises(errors.NewerSchemaError, match=message):
        list(Store.open(store.root).trials())


def test_a_version_that_was_never_published_is_one_clear_error(store):
    _edit(store.root / "plan.json", schema_version=3)
    with pytest.raises(
        errors.OlderSchemaError,
        match=r"plan.json' was written by an older version \(schema 3, this reads 4 and"
        r" newer\): read it with the release that wrote it, or measure again",
    ):
        Store.open(store.root)


def test_a_trial_of_the_version_before_keeps_its_name(tmp_path, synthetic):
    """What it did not have yet has defaults; it is read under the same id."""
    store = synthetic.make_store(tmp_path / "study")
    before = {trial.trial_id: trial for trial in store.trials()}
    for path in store.root.rglob("*.json"):
        fields = json.loads(path.read_text())
        fields["schema_version"] = 4
        fields.pop("draws_random_numbers", None)
        for trial in fields.get("trials", ()):
            trial["spec"]["schema_version"] = 4
        path.write_text(json.dumps(fields))

    after = {trial.trial_id: trial for trial in Store.open(store.root).trials()}

    assert before == after
    assert len(store.read_plan().trials) == len(before)


def test_missing_plan_says_how_to_get_one(store):
    (store.root / "plan.json").unlink()
    with pytest.raises(errors.MissingRecordError, match=r"has no plan.json; run the"):
        Store.open(store.root).read_plan()


def test_opening_nothing_is_an_error(tmp_path):
    with pytest.raises(errors.OpenStoreError, match="the directory does not exist"):
        Store.open(tmp_path / "missing")
    with pytest.raises(errors.OpenStoreError, match=r"holds neither plan.json nor"):
        Store.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OpenStoreError, match="is a file, must be a study"):
        Store.open(tmp_path / "file")


def test_creating_where_it_cannot_be_is_an_error(tmp_path):
    """A file in the way, a folder of something else, a place nobody can write."""
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OpenStoreError, match="is a file; choose another"):
        Store.create(tmp_path / "file" / "study")
    with pytest.raises(errors.OpenStoreError, match="holds files but no study"):
        Store.create(tmp_path)
    with pytest.raises(errors.WriteStoreError, match="cannot write study directory"):
        Store.create(pathlib.Path("/proc/nowhere/study"))

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_creating_twice_opens_the_same(store):
    assert len(Store.create(store.root).trial_ids()) == 4


def test_failure_has_its_phase(tmp_path, synthetic):
    shape = synthetic.Shape(
        replicas=(1,),
        statuses={("in_graph", synthetic.WEAK, 1, 0): TrialStatus.FAILED},
    )
    store = synthetic.make_store(tmp_path, shape)
    (failed,) = [t for t in store.trials() if t.status.status is not TrialStatus.OK]

    assert failed.status.failure.phase.value == "build"
    assert failed.result is None


def test_plans_of_workloads_that_draw_say_so_after_an_upgrade(tmp_path):
    """Version 4 did not record it, and only the steps of ``sngan`` did."""
    for workload in ("sngan", "resnet50"):
        spec = {"schema_version": 4, "workload": workload}
        trials = [{"spec": spec}]
        plan = {"schema_version": 4, "trials": trials, "matching": {"trials": trials}}
        upgraded = upgrade.upgrade("plan", plan, tmp_path)

        assert upgraded["draws_random_numbers"] is (workload == "sngan")
        for part in (upgraded, upgraded["matching"]):
            assert 6 == part["trials"][0]["spec"]["schema_version"]


@pytest.mark.parametrize("name", ["d4pg", "resnet50-two-cores", "sngan"])
def test_kept_studies_know_what_their_metrics_mean(name):
    """All that their trials recorded; counts of steps mean the same in all of them."""
    store = Store.open(published_studies.study(name))
    known = {facts.name for facts in store.read_plan().metrics} | {*measuring.UNITS}
    recorded = {
        metric.name
        for trial in store.trials()
        if trial.result is not None
        for metric in (
            *trial.result.window_metrics,
            *trial.result.quality,
            *(metric for point in trial.result.curve for metric in point.quality),
        )
    }

    assert recorded
    assert recorded <= known


@pytest.fixture
def failing_sync(monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.usefixtures("failing_sync")
def test_an_error_of_a_disk_names_the_file(tmp_path):
    """Without a name it is taken for one of the standard output."""
    with pytest.raises(OSError, match=r"Input/output error: '.*/x\.json'"):
        atomic.write_text(tmp_path / "x.json", "{}")
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}'"):
        atomic.sync(tmp_path)

    assert [] == list(tmp_path.iterdir())


PLAN_OF_A = "a/plan.json"


def _zip(path, **files):
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_a_zip_is_unpacked_and_removed(tmp_path):
    """Its study is the folder in it; entries for folders are none."""
    path = _zip(
        tmp_path / "a.zip", **{"a/": "", PLAN_OF_A: "1", "a/trials/x/y.json": "2"}
    )

    with zipped.opened(path) as root:
        assert "a" == root.name
        assert "1" == (root / "plan.json").read_text()
        assert "2" == (root / "trials/x/y.json").read_text()
    assert not root.exists()


def test_a_zip_of_a_folder_from_inside_is_a_study(tmp_path):
    """As somebody packs it again who has unpacked it."""
    with zipped.opened(_zip(tmp_path / "a.zip", **{"plan.json": "1"})) as root:
        assert "1" == (root / "plan.json").read_text()


def test_a_folder_around_one_study_is_that_study(tmp_path):
    """As unpacking makes it; of several none is chosen, and a study is itself."""
    (tmp_path / "a").mkdir()
    (tmp_path / PLAN_OF_A).write_text("1")
    with zipped.opened(tmp_path) as root:
        assert tmp_path / "a" == root
    with zipped.opened(tmp_path / "a") as root:
        assert tmp_path / "a" == root

    (tmp_path / "b").mkdir()
    (tmp_path / "b/plan.json").write_text("1")
    for path in (tmp_path, tmp_path / "missing"):
        with zipped.opened(path) as root:
            assert path == root


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x",), r"'.*a.zip' holds no study, must hold one \(a folder with plan.json"),
        (
            (PLAN_OF_A, "b/plan.json"),
            r"holds 2 studies, must hold one .*; give the records",
        ),
        (
            ("../plan.json",),
            r"no zip file of a study: '../plan.json' leads out of it; ",
        ),
        (
            ("/a/plan.json",),
            r"'/a/plan.json' leads out of it; give a study, its folder",
        ),
        (("a\\plan.json",), r"leads out of it"),
        ((PLAN_OF_A, "a//plan.json"), r"'a//plan.json' is in it twice"),
    ],
)
def test_other_zips_are_refused(tmp_path, names, message):
    path = _zip(tmp_path / "a.zip", **dict.fromkeys(names, "1"))

    with pytest.raises(errors.ResultsError, match=message), zipped.opened(path):
        pass


def test_files_that_are_no_zips_are_refused(tmp_path, monkeypatch):
    """Other files, damaged ones, and those that would fill a disk."""
    path = tmp_path / "a.zip"
    path.write_text("text")
    with (
        pytest.raises(
            errors.ResultsError, match=r"is no zip file of a study: .*zip fi"
        ),
        zipped.opened(path),
    ):
        pass

    content = _zip(path, **{PLAN_OF_A: "some text"}).read_bytes()
    path.write_bytes(content.replace(b"some", b"more"))
    with pytest.raises(errors.ResultsError, match=r"Bad CRC-32"), zipped.opened(path):
        pass

    path.write_bytes(content)
    monkeypatch.setattr(zipped, "MOST_BYTES", 8)
    with (
        pytest.raises(
            errors.ResultsError, match=r"1 files of 0 MiB, at most .* MiB are"
        ),
        zipped.opened(path),
    ):
        pass


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """With the variable that names another folder."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    path = _zip(tmp_path / "a.zip", **{PLAN_OF_A: "1"})
    monkeypatch.setattr(Path, "write_bytes", fail)
    with (
        pytest.raises(
            errors.ResultsError,
            match=r"cannot be unpacked into '.*': No space left on device; .* TMPDIR$",
        ),
        zipped.opened(path),
    ):
        pass

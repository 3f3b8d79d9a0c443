"""The store: atomic, named problems, nothing newer or elsewhere; a study in a zip."""

import os
import zipfile
from pathlib import Path

import pytest
from study_files import edit_record, ended_ids

import results
from results import SCHEMA_VERSION, Store, opened


@pytest.fixture
def store(tmp_path, synthetic):
    """Two backends, one replica, one mode, two repetitions: four trials."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), replicas=(1,), repeats=2)
    return synthetic.make_store(tmp_path / "study", shape)


def test_records_read_back_equal(tmp_path, store):
    copy = Store.create(tmp_path / "copy")
    copy.write_plan(store.read_plan())
    for trial in store.trials():
        copy.write_spec(trial.trial_id, trial.spec)
        copy.write_env(trial.trial_id, trial.env)
        copy.write_result(trial.trial_id, trial.result)
        copy.write_status(trial.trial_id, trial.status)

    folder = copy.trial_dir(copy.trial_ids()[0])
    mask = os.umask(0)
    os.umask(mask)
    # Temporary files are gone, and records are as readable as any file.
    assert {"env.json", "result.json", "spec.json", "status.json"} == {
        path.name for path in folder.iterdir()
    }
    assert (folder / "spec.json").stat().st_mode & 0o777 == 0o666 & ~mask
    assert list(store.trials()) == list(copy.trials())
    assert store.read_plan() == copy.read_plan()
    assert len(ended_ids(copy)) == 4
    assert copy.read().problems == ()


def test_failed_write_keeps_the_old_record(store, monkeypatch):
    trial = next(store.trials())
    folder = store.trial_dir(trial.trial_id)
    before = [(folder / f"{name}.json").read_bytes() for name in ("env", "status")]

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    env = trial.env.model_copy(update={"kernel": "other"})
    status = trial.status.model_copy(update={"duration_sec": 99.0})
    for write, record in ((store.write_env, env), (store.write_status, status)):
        with pytest.raises(
            results.WriteStoreError, match=r"cannot write .*No space left on device; fr"
        ):
            write(trial.trial_id, record)

    assert before == [
        (folder / f"{name}.json").read_bytes() for name in ("env", "status")
    ]
    assert len(list(folder.iterdir())) == 4


def test_unfinished_and_empty_folders_are_not_finished(store):
    first, second, *others = store.trial_ids()
    (store.trial_dir(first) / "status.json").unlink()
    for path in store.trial_dir(second).iterdir():
        path.unlink()

    assert ended_ids(store) == frozenset(others)
    assert store.read().problems == ()
    assert store.read_trial(first).status is None
    with pytest.raises(results.MissingRecordError, match=f"no trial '{second}' in"):
        store.read_trial(second)


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        (
            7,
            results.NewerSchemaError,
            (
                r"plan.json' was written by a newer version \(schema 7, this reads up"
                rf" to {SCHEMA_VERSION}\): upgrade replicator-harness"
            ),
        ),
        (
            5,
            results.OlderSchemaError,
            (
                r"plan.json' was written by an older version \(schema 5, this reads"
                r" 6\): read it with the release that wrote it, or measure again"
            ),
        ),
    ],
)
def test_another_version_is_one_clear_error(store, version, error, message):
    result = store.trial_dir(store.trial_ids()[0]) / "result.json"
    edit_record(result, schema_version=version)
    with pytest.raises(error, match=message.replace("plan", "result")):
        list(Store.open(store.root).trials())
    edit_record(store.root / "plan.json", schema_version=version)
    with pytest.raises(error, match=message):
        Store.open(store.root).read_plan()


def test_opening_nothing_is_an_error(tmp_path, store):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("missing", "the directory does not exist"),
        ("empty", "holds neither plan.json nor"),
        ("file", "is a file, must be a study"),
    ):
        with pytest.raises(results.OpenStoreError, match=message):
            Store.open(tmp_path / name)
    (store.root / "plan.json").unlink()
    with pytest.raises(results.MissingRecordError, match=r"has no plan.json; run the"):
        Store.open(store.root).read_plan()


def test_creating_where_it_cannot_be_is_an_error(tmp_path, store):
    (tmp_path / "file").write_text("")
    for path, error, message in (
        (
            tmp_path / "file" / "study",
            results.OpenStoreError,
            "is a file; choose another",
        ),
        (tmp_path, results.OpenStoreError, "holds files but no study"),
        (
            Path("/proc/nowhere/study"),
            results.WriteStoreError,
            "cannot write study directory",
        ),
    ):
        with pytest.raises(error, match=message):
            Store.create(path)

    assert {"file", "study"} == {path.name for path in tmp_path.iterdir()}
    assert len(Store.create(store.root).trial_ids()) == 4


PLAN_OF_A = "a/plan.json"


def _zip(path, **files):
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_a_zip_is_unpacked_and_removed(tmp_path):
    names = {"a/": "", PLAN_OF_A: "1", "a/trials/x/y.json": "2"}
    with opened(_zip(tmp_path / "a.zip", **names)) as root:
        assert "a" == root.name
        assert "1" == (root / "plan.json").read_text()
        assert "2" == (root / "trials/x/y.json").read_text()
    assert not root.exists()

    with opened(_zip(tmp_path / "b.zip", **{"plan.json": "1"})) as root:
        assert "1" == (root / "plan.json").read_text()


def test_a_folder_around_one_study_is_that_study(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / PLAN_OF_A).write_text("1")
    with opened(tmp_path) as root:
        assert tmp_path / "a" == root
    with opened(tmp_path / "a") as root:
        assert tmp_path / "a" == root

    (tmp_path / "b").mkdir()
    (tmp_path / "b/plan.json").write_text("1")
    for path in (tmp_path, tmp_path / "missing"):
        with opened(path) as root:
            assert path == root


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x",), r"'.*a.zip' holds no study, must hold one \(a folder with plan.json"),
        (("../plan.json",), r"no zip file of a study: '../plan.json' leads out of"),
        (("a\\plan.json",), r"leads out of it"),
        ((PLAN_OF_A, "a//plan.json"), r"'a//plan.json' is in it twice"),
    ],
)
def test_other_zips_are_refused(tmp_path, names, message):
    path = _zip(tmp_path / "a.zip", **dict.fromkeys(names, "1"))

    _refused(path, message)


def _refused(path, message):
    with pytest.raises(results.ResultsError, match=message), opened(path):
        pass


def test_files_that_cannot_be_unpacked_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.zip"
    path.write_text("text")
    _refused(path, r"is no zip file of a study: .*zip fi")

    content = _zip(path, **{PLAN_OF_A: "some text"}).read_bytes()
    path.write_bytes(content.replace(b"some", b"more"))
    _refused(path, r"Bad CRC-32")

    with zipfile.ZipFile(path, "w") as file:
        file.writestr(PLAN_OF_A, "1")
        file.filelist[0].file_size = 2**40  # as it claims
    _refused(path, r"1 files of 1048576 MiB, at most .* MiB are")

    path.write_bytes(content)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    _refused(path, r"cannot be unpacked into '.*': No space left on device; .* TMPDIR$")

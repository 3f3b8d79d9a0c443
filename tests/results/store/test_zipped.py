"""A study is read from a zip of it as from its folder."""

import zipfile
from pathlib import Path

import pytest

from results import errors
from results.store import zipped

PLAN = "a/plan.json"


def _write(path, **files):
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def test_a_zip_is_unpacked_and_removed(tmp_path):
    """Its study is the folder in it; entries for folders are none."""
    path = _write(tmp_path / "a.zip", **{"a/": "", PLAN: "1", "a/trials/x/y.json": "2"})

    with zipped.opened(path) as root:
        assert "a" == root.name
        assert "1" == (root / "plan.json").read_text()
        assert "2" == (root / "trials/x/y.json").read_text()
    assert not root.exists()


def test_a_zip_of_a_folder_from_inside_is_a_study(tmp_path):
    """As somebody packs it again who has unpacked it."""
    with zipped.opened(_write(tmp_path / "a.zip", **{"plan.json": "1"})) as root:
        assert "1" == (root / "plan.json").read_text()


def test_a_folder_around_one_study_is_that_study(tmp_path):
    """As unpacking makes it; of several none is chosen, and a study is itself."""
    (tmp_path / "a").mkdir()
    (tmp_path / PLAN).write_text("1")
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
        ((PLAN, "b/plan.json"), r"holds 2 studies, must hold one .*; give the records"),
        (
            ("../plan.json",),
            r"no zip file of a study: '../plan.json' leads out of it; ",
        ),
        (
            ("/a/plan.json",),
            r"'/a/plan.json' leads out of it; give a study, its folder",
        ),
        (("a\\plan.json",), r"leads out of it"),
        ((PLAN, "a//plan.json"), r"'a//plan.json' is in it twice"),
    ],
)
def test_other_zips_are_refused(tmp_path, names, message):
    path = _write(tmp_path / "a.zip", **dict.fromkeys(names, "1"))

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

    content = _write(path, **{PLAN: "some text"}).read_bytes()
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

    path = _write(tmp_path / "a.zip", **{PLAN: "1"})
    monkeypatch.setattr(Path, "write_bytes", fail)
    with (
        pytest.raises(
            errors.ResultsError,
            match=r"cannot be unpacked into '.*': No space left on device; .* TMPDIR$",
        ),
        zipped.opened(path),
    ):
        pass

"""``store merge`` on the command line: what it prints, and its exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import exit_codes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machines(template: Path, tmp_path: Path) -> Path:
    """Returns a directory with two stores, which share the trials of one study."""
    runs = tmp_path / "runs"
    for place in range(2):
        study = runs / f"machine-{place}"
        shutil.copytree(template / "runs" / "s", study)
        for folder in sorted((study / "trials").iterdir())[1 - place :: 2]:
            shutil.rmtree(folder)
    return runs


def test_two_stores_become_one(machines: Path, harness: Any) -> None:
    """The new study is one that every verb reads."""
    output = str(machines / "all")
    code, out, err = harness("store", "merge", "machine-0", "machine-1", "-o", output)

    assert (exit_codes.OK, "") == (code, err)
    assert f"{output}: " in out
    assert "trials of 2 stores" in out
    assert exit_codes.OK == harness("status", "all")[0]


def test_json_has_the_counts(machines: Path, harness: Any) -> None:
    """For scripts that collect from a cluster."""
    (next((machines / "machine-0" / "trials").iterdir()) / "status.json").unlink()
    output = str(machines / "all")
    code, out, err = harness(
        "store", "merge", "machine-1", "machine-0", "-o", output, "--json"
    )
    counts = json.loads(out)

    assert exit_codes.OK == code
    assert (2, 1) == (counts["num_stores"], counts["num_unfinished_trials"])
    assert "left out: 1 trials that no store has finished; resume the study" in err


@pytest.mark.parametrize("call", ["scandir", "listdir"])
@pytest.mark.parametrize("place", range(3))
def test_a_folder_that_cannot_be_listed_is_not_merged_without_its_files(
    machines: Path, harness: Any, monkeypatch: pytest.MonkeyPatch, call: str, place: int
) -> None:
    """The merged study is whole, or there is none."""
    folder = min((machines / "machine-0" / "trials").iterdir())
    real, count = getattr(os, call), [0]

    def refuse(path: Any = ".") -> Any:
        if str(path).endswith(f"machine-0/trials/{folder.name}"):
            count[0] += 1
            if count[0] > place:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, call, refuse)
    output = machines / "all"
    words = ("store", "merge", "machine-0", "machine-1", "-o", str(output))
    code, out, err = harness(*words)
    monkeypatch.undo()
    if code != exit_codes.OK:
        assert count[0] > place
        assert (exit_codes.USAGE, "", False) == (code, out, output.exists())
        assert f"trials/{folder.name}" in err
        return
    merged = output / "trials" / folder.name

    assert {of.name for of in folder.iterdir()} == {of.name for of in merged.iterdir()}


@pytest.mark.usefixtures("machines")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["machine-0", "-o", "x"], "only 1 store is given"),
        (["machine-0", "nothing", "-o", "x"], "no study at "),
        (["machine-0", "machine-1"], "Missing option '-o'"),
        (["machine-0", "machine-0", "-o", "x"], "is given twice"),
    ],
)
def test_bad_input_exits_with_2(harness: Any, arguments: Any, message: str) -> None:
    """One line, and nothing is written."""
    code, out, err = harness("store", "merge", *arguments)

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert 1 == len(err.splitlines())

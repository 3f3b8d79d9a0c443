"""Processes that are started from here: what they inherit."""

import os
import pathlib
import subprocess
import sys

from workloads import child_process

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_a_child_imports_what_this_process_can(tmp_path, monkeypatch):
    """This package first, then what the variable names, then what was added here."""
    named, added = tmp_path / "named", tmp_path / "added"
    for folder in (named, added):
        folder.mkdir()
        (folder / f"only_{folder.name}.py").write_text(f"FOLDER = {folder.name!r}\n")
    monkeypatch.setenv("PYTHONPATH", str(named))
    monkeypatch.syspath_prepend(added)
    code = (
        "import workloads.child_process as found, only_named, only_added, sys\n"
        "print(found.__file__, only_named.FOLDER, only_added.FOLDER,\n"
        "    'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_process.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"{child_process.__file__} named added False\n" == done.stdout


def test_variables_are_added_and_the_others_kept(monkeypatch):
    """No directory is named by nothing: that would be wherever the child works."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", "/somewhere", str(ROOT)])

    assert {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}/somewhere"} == (
        child_process.environment()
    )
    found = child_process.environment(child_process.ONE_THREAD)
    assert ("1", "0") == (found["OMP_NUM_THREADS"], found["LP_NUM_THREADS"])
    assert {"A": "b", "PYTHONPATH": f"{ROOT}{os.pathsep}/somewhere"} == (
        child_process.environment(variables={"A": "b"})
    )

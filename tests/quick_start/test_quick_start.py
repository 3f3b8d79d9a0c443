"""How tests are started: quick imports, little garbage to visit, long files first."""

import errno
import gc
import os
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
OPTIONAL = {"matplotlib", "pandas", "sklearn"}


@pytest.mark.processes
def test_keras_goes_without_what_it_imports_if_it_finds_it():
    """Programs can import it all the same, and garbage is collected as ever."""
    code = (
        "import gc, sys, keras, tensorflow\n"
        f"print(sorted({OPTIONAL} & set(sys.modules)), gc.isenabled())\n"
        "import matplotlib, pandas, sklearn\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
    )

    assert "[] True\n" == done.stdout


@pytest.mark.processes
def test_files_are_written_and_not_synced(tmp_path):
    """Also in processes that tests start; what is no open file is an error as ever."""
    code = (
        "import os, sys\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    os.fsync(file.fileno())\n"
        "try: os.fsync(999)\n"
        "except OSError as error: print(error.errno, os.fsync.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER)},
    )

    assert f"{errno.EBADF} _do_not_sync\n" == done.stdout


def test_the_order_of_files_names_files_that_exist():
    """One that was moved would lose its group or its place without a word."""
    settings = runpy.run_path(str(TESTS / "conftest.py"))
    named = [*settings["GROUPS"], *settings["LONG_FIRST"]]

    assert named
    assert [] == [path for path in named if not (TESTS.parent / path).exists()]


def test_what_is_compiled_is_kept(monkeypatch):
    """Also where the environment asks not to; processes of tests inherit it."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    runpy.run_path(str(TESTS / "conftest.py"))

    assert not sys.dont_write_bytecode
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_what_a_file_leaves_is_set_aside_before_the_next_one():
    """Within a file nothing is: what a test forgets has to be found."""
    set_up = runpy.run_path(str(TESTS / "conftest.py"))["pytest_runtest_setup"]
    left, counts = [], []
    for nodeid in ("a.py::one", "b.py::one", "b.py::two"):
        left += [[] for _ in range(250_000)]
        set_up(types.SimpleNamespace(nodeid=nodeid))
        counts.append(gc.get_freeze_count())

    assert counts[0] + 200_000 < counts[1] == counts[2]

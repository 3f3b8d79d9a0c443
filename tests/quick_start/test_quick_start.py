"""How tests are started: TensorFlow without what it does not need, long files first."""

from __future__ import annotations

import errno
import os
import runpy
import subprocess
import sys
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

"""Trainings run with the import of TensorFlow that users get."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TIMEOUT_SEC = 600
TRAININGS = ("tests/conformance", "-k", "single_1 and (fits or trains_with_optimizers)")
# Runs tests, then tells what Keras found when they had imported it.
CHILD = """
import json, os, sys
import pytest
code = pytest.main(sys.argv[2:])
from keras.src.trainers.data_adapters import array_slicing
from keras.src.visualization import plot_image_gallery
from keras.src.wrappers import fixes
found = {
    "pandas": array_slicing.pandas is not None,
    "matplotlib": plot_image_gallery.plt is not None,
    "sklearn": fixes.sklearn is not None,
}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump([int(code), found, os.environ.get("PYTHONPATH", "")], file)
"""


@pytest.mark.processes
def test_tests_pass_where_keras_finds_what_other_tests_hide(tmp_path):
    facts = tmp_path / "facts.json"
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p and p != str(FOLDER)),
        "IMPORT_AS_USERS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(facts), "-q", *TRAININGS],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SEC,
    )
    assert facts.exists(), done.stdout + done.stderr
    code, found, path = json.loads(facts.read_text())

    assert 0 == code, done.stdout
    assert " passed" in done.stdout
    assert {"pandas": True, "matplotlib": True, "sklearn": True} == found
    assert str(FOLDER) not in path


def test_the_order_of_files_names_files_that_exist():
    """One that was moved would lose its group or its place without a word."""
    settings = runpy.run_path(str(FOLDER.parent / "conftest.py"))
    lists = ("GROUPS", "LONG_FIRST", "WAITING")
    named = [name for each in lists for name in settings[each]]

    assert named
    assert [] == [path for path in named if not (ROOT / path).exists()]

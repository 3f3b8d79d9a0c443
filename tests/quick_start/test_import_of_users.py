"""A whole file of each package runs with the import of TensorFlow that users get."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TIMEOUT_SEC = 600
FILES = {
    "replicator": "tests/replicator/backends/test_summaries.py",
    "workloads": "tests/workloads/resnet50/test_math.py",
    "harness": "tests/harness/trial/test_readings.py",
    "results": "tests/results/figures/test_frames.py",
    "reports": "tests/reports/words/test_formats.py",
}
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
answer = {"found": found, "path": os.environ.get("PYTHONPATH", ""), "code": int(code)}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(answer, file)
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """What the process answered."""

    found: dict[str, bool]
    path: str
    code: int
    cases: dict[str, list[str]]
    output: str


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The files, run in a process that starts as a user's does."""
    folder = tmp_path_factory.mktemp("as_users")
    report, facts = folder / "report.xml", folder / "facts.json"
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p and p != str(FOLDER)),
        "IMPORT_AS_USERS": "1",
    }
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *FILES.values()]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(facts), *options],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SEC,
    )
    assert facts.exists(), done.stdout + done.stderr
    cases = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        cases.setdefault(file, []).extend(each.tag for each in case)
        cases[file].append("ran")
    return Run(cases=cases, output=done.stdout, **json.loads(facts.read_text()))


@pytest.mark.parametrize("package", FILES)
def test_a_whole_file_of_each_package_passes(run, package):
    """None of its tests fails, and not all of them are skipped."""
    outcomes = run.cases[FILES[package]]

    assert not {"failure", "error"} & set(outcomes), run.output
    assert outcomes.count("skipped") < outcomes.count("ran")


def test_all_of_them_pass_together(run):
    """Also what pytest does around them."""
    assert 0 == run.code, run.output
    assert set(FILES.values()) == set(run.cases)


def test_keras_found_what_other_tests_hide(run):
    """There, and in the processes that the tests started."""
    assert {"pandas": True, "matplotlib": True, "sklearn": True} == run.found
    assert str(FOLDER) not in run.path


def test_the_order_of_files_names_files_that_exist():
    """One that was moved would lose its group or its place without a word."""
    settings = runpy.run_path(str(FOLDER.parent / "conftest.py"))
    named = [*settings["GROUPS"], *settings["LONG_FIRST"]]

    assert named
    assert [] == [path for path in named if not (ROOT / path).exists()]

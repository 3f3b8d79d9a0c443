"""``pytest --pyargs harness.conformance`` beside packages of somebody's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import install

from harness.conformance import plugin_checks, plugin_trials
from harness.conformance.checks import NonconformingError

__all__ = ["install"]

ROOT = Path(__file__).resolve().parents[3]
IMPORTS = """
import dataclasses
from markupsafe import Markup
from harness.launch.info import LauncherInfo
from harness.launch.local import LocalLauncher
from replicator.catalog import BackendInfo
from reports.exports.export_formats import ExportFormat, Output
from reports.page import page
from results.figures.trial_metrics import TrialMetric
from workloads.keras_fit.own_model import keras_workload
"""
GOOD = f"""{IMPORTS}
def model():
    import keras
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made

def data():
    import tensorflow as tf
    x = tf.random.stateless_normal([64, 8], [0, 1])
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1]))

TITLE, SLUG = "Own", "own"

def render(view):
    count = len(view.study.backends)
    return page.render_text("<h3 id='own-1'>{{{{ n }}}}</h3><br>", n=count)

def write(stores, metric):
    return metric.name

class Boat(LauncherInfo):
    name, summary = "boat", "by boat"

    def start(self, options):
        return LocalLauncher()

BOAT = Boat()
MINE = keras_workload("mine", model, data)
GRAPH = BackendInfo(name="graph", description="as in_graph", kind="in-graph",
                    target="replicator.backends.in_graph:InGraphReplicator")
RANKS = TrialMetric(name="ranks", title="Ranks", unit="1",
                    of=lambda entry: len(entry.result.ranks))
NAMES = ExportFormat(name="names", output=Output.TEXT, writer="good:write")
"""
ENTRIES = {
    "workloads": {"mine": "good:MINE"},
    "backends": {"graph": "good:GRAPH"},
    "launchers": {"boat": "good:BOAT"},
    "metrics": {"ranks": "good:RANKS"},
    "sections": {"own": "good"},
    "formats": {"names": "good:NAMES"},
}
BAD = f"""{IMPORTS}
def model(): ...
def data(): ...
MINE = dataclasses.replace(keras_workload("lame", model, data), default_preset="big")
GRAPH = BackendInfo(name="torn", description="-", kind="peer", target="no.such:Graph")
class Boat(LauncherInfo):
    name, summary = "sunk", "by nothing"
BOAT = Boat()
TEXT = TrialMetric(name="text", title="Text", unit="1", of=lambda entry: "many")
def raises(entry):
    return entry.result.ranks[0].no_such_figure
ERROR = TrialMetric(name="error", title="Error", unit="1", of=raises)
TITLE, SLUG = "Open", "open"
def render(view):
    return Markup("<p><b>3</b>")
class Loading:
    TITLE, SLUG = "Loading", "loading"
    render = staticmethod(lambda view: Markup("<img src='https://example.org/a.png'>"))
class Plain:
    TITLE, SLUG = "Plain", "plain"
    render = staticmethod(lambda view: "<p>3</p>")
def write(stores, metric):
    return b"3"
def spoil(stores, metric):
    (stores[0].root / "notes.txt").write_text("seen")
    return ""
BYTES = ExportFormat(name="bytes", output=Output.TEXT, writer="bad:write")
SPOIL = ExportFormat(name="spoil", output=Output.TEXT, writer="bad:spoil")
"""
BAD_ENTRIES = {
    "workloads": {"lame": "bad:MINE"},
    "backends": {"torn": "bad:GRAPH"},
    "launchers": {"sunk": "bad:BOAT"},
    "metrics": {"text": "bad:TEXT", "error": "bad:ERROR"},
    "sections": {"open": "bad", "loading": "bad:Loading", "plain": "bad:Plain"},
    "formats": {"bytes": "bad:BYTES", "spoil": "bad:SPOIL"},
}
# The line to repair, as it stands in BAD, and what is said of it.
SAID = {
    "MINE = dataclasses.replace(": "has default_preset='big', and presets own",
    "GRAPH = ": "has target='no.such:Graph', and needs MODULE:CLASS",
    "BOAT = ": "does nothing: define one of start, submit, render",
    "TEXT = ": "returns 'many' for a trial, and has to return a float",
    "    return entry.": "AttributeError",
    "def render(": "leaves <p> open",
    "class Loading": "loads 'https://example.org/a.png'; a page has to be whole",
    "class Plain": "renders a str, and has to return what",
    "def write(": "returns a bytes for output 'text', which needs str",
    "SPOIL = ": "changed files of the study; read it only",
}


def conformance(folder: Path, *options: str, **variables: str) -> Any:
    """Runs the checks as a user does; returns exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "harness.conformance", *options,
         "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder / 'site'}",
             "COLUMNS": "300", **variables},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.processes
def test_good_ones_pass_and_bad_ones_say_the_line_to_repair(
    install: Any, template: Path, tmp_path: Path
) -> None:
    """Of every kind, before trials of it are measured."""
    install("good", GOOD, **ENTRIES)
    install("bad", BAD, **BAD_ENTRIES)
    study = shutil.copytree(template / "runs" / "s", tmp_path / "study")

    code, out = conformance(
        tmp_path, "-rA", "-k", "not is_measured", HARNESS_STUDY=str(study)
    )

    assert 1 == code, out
    passed = set(re.findall(r"PASSED .*\[\w+ (\S+)\]", out))
    assert {name for of in ENTRIES.values() for name in of} <= passed
    failed = set(re.findall(r"FAILED .*\[\w+ (\S+)\]", out))
    assert {name for of in BAD_ENTRIES.values() for name in of} == failed
    lines = BAD.splitlines()
    for start, said in SAID.items():
        (number,) = (k for k, line in enumerate(lines, 1) if line.startswith(start))
        assert re.search(rf"bad\.py:{number}: .*{re.escape(said)}", out), (start, out)


@pytest.mark.full
@pytest.mark.processes
def test_workloads_backends_and_launchers_are_measured(
    install: Any, tmp_path: Path
) -> None:
    """With TensorFlow; what fails in a trial has the line of the plugin.

    The full run adds all of it: other tests look at facts and at what is shown.
    """
    text = GOOD.replace("made.compile", "made.compite").replace('"mine"', '"lame"')
    install("good", GOOD, **ENTRIES)
    install("torn", text.replace("good:", "torn:"), workloads={"lame": "torn:MINE"})

    code, out = conformance(tmp_path, "-rA", "-k", "is_measured")

    assert 1 == code, out
    passed = set(re.findall(r"PASSED .*\[\w+ (\S+)\]", out))
    assert {"mine", "graph", "boat"} == passed, out
    number = 1 + text.splitlines().index('    made.compite("sgd", "mse")')
    assert re.search(rf"torn\.py:{number}: workload 'lame' .*compite", out), out


def test_a_plugin_of_the_folder_is_named_by_a_variable(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another value of it is refused, and so is an environment without plugins."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "near.py").write_text(GOOD, encoding="utf-8")
    monkeypatch.setenv("HARNESS_PLUGINS", "workloads=near:MINE")
    (plugin,) = plugin_checks.named()
    plugin_checks.describe(plugin, plugin_checks.load(plugin))
    for value in ("near:MINE", "workload=near:MINE", "workloads="):
        monkeypatch.setenv("HARNESS_PLUGINS", value)
        with pytest.raises(NonconformingError, match=f"has '{value}', and needs KIND="):
            plugin_checks.named()


def test_what_fails_in_a_trial_has_the_last_line_of_the_plugin(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the traceback that the trial recorded; else that of the object."""
    monkeypatch.chdir(tmp_path)
    near = tmp_path / "near.py"
    near.write_text(GOOD, encoding="utf-8")
    monkeypatch.setenv("HARNESS_PLUGINS", "workloads=near:MINE")
    (plugin,) = plugin_checks.named()
    plugin_checks.load(plugin)
    of_object = 1 + GOOD.splitlines().index(
        'MINE = keras_workload("mine", model, data)'
    )
    frames = [("worker.py", 30), (near, 14), (near, 15), ("keras.py", 3)]
    lines = [f'  File "{path}", line {line}, in call' for path, line in frames]
    trials = tmp_path / "runs" / "s" / "trials"
    for name, failure in (
        ("a", None),
        ("b", {"reason": "no such name", "traceback": "\n".join(lines)}),
    ):
        (trials / name).mkdir(parents=True)
        record = json.dumps({"failure": failure})
        (trials / name / "status.json").write_text(record)

    assert "near.py:15: " == plugin_trials._place(plugin, tmp_path)
    assert ["no such name"] == [
        failure["reason"] for failure in plugin_trials._failures(trials.parent)
    ]
    shutil.rmtree(trials / "b")
    assert f"near.py:{of_object}: " == plugin_trials._place(plugin, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"import tensorflow\n{GOOD}",
            "imports TensorFlow, which the planner must not",
        ),
        (
            "MINE = 1 / 0\n",
            r"raises an error when it is imported: ZeroDivision.*line 1",
        ),
        ("HARNESS_API = 2\nMINE = 3\n", r"near\.py:2: .*for version 2 of the interf"),
        ("\nMINE = 3\n", r"near\.py:2: .*is of type int, and has to be a workloads\."),
    ],
)
def test_what_cannot_be_imported_is_said(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    """With the line, where it is known."""
    monkeypatch.chdir(tmp_path)
    if "tensorflow" in text:
        (tmp_path / "tensorflow.py").touch()
        monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    (tmp_path / "near.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HARNESS_PLUGINS", "workloads=near:MINE")
    (plugin,) = plugin_checks.named()

    with pytest.raises(NonconformingError, match=said):
        plugin_checks.load(plugin)
    if "tensorflow" in text:
        monkeypatch.delitem(sys.modules, "tensorflow")

"""Small studies by which a plugin is tried: commands of the harness, as a user's."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.conformance.checks import NonconformingError
from harness.conformance.plugin_checks import place_of
from harness.sources import plugin_code
from results import plugins
from results.store.study_store import Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.plugins import Plugin

STUDY_VARIABLE: Final = "HARNESS_STUDY"
"""A folder of a study, in place of one that is measured for the checks."""
_TIMEOUT_SEC: Final = 900.0
_PROGRAM: Final = """
import sys, time
for step in range(6):
    time.sleep(0.005)
    print("rate:", (100 + step) * int(sys.argv[1]), flush=True)
"""
_SMALLEST: Final = (
    *("--mode", "weak", "--order", "sequential", "--repeats", "1"),
    *("--num-warmup-steps", "1", "--num-measured-steps", "3"),
)


def any_study(folder: Path) -> Store:
    """Returns a study of two trials of a small program, or the one that is named.

    Args:
      folder: Gets it.

    Raises:
      NonconformingError: It cannot be measured here.
    """
    if path := os.environ.get(STUDY_VARIABLE):
        return Store.open(Path(path))
    (folder / "rate.py").write_text(_PROGRAM, encoding="utf-8")
    words = [shlex.quote(sys.executable), "rate.py", "{replicas}"]
    sweep = ["--command", " ".join(words), "--metric", "throughput=rate: ([0-9]+)"]
    sweep += ["--replicas", "1", "--per-replica-batch-size", "1", "--mode", "weak"]
    return _sweep(folder, [*sweep, "--repeats", "2"], folder)


def measure(plugin: Plugin, found: Any, folder: Path) -> None:
    """Measures the smallest study with a workload, a backend or a launcher of a plugin.

    One replica, and two where there can be; two are matched with one. All trials must
    be ok, and every figure must follow from what they recorded.

    Args:
      plugin: Where it is from.
      found: The object.
      folder: Gets the study.

    Raises:
      NonconformingError: Names the line to repair where a trial tells it.
    """
    name = plugin.target if not plugin.distribution else plugins.name_of(found)
    own = {
        "workloads": ["--workload", name, "--backends", "in_graph"],
        "backends": ["--workload", "d4pg", "--preset", "smoke", "--backends", name],
        "launchers": ["--workload", "d4pg", "--preset", "smoke", "--launcher", name],
    }[plugin.kind]
    if plugin.kind == "launchers":
        own += ["--backends", "in_graph", "--no-match"]
    most = getattr(found, "max_replicas", None) or 2
    replicas = "1" if plugin.kind == "launchers" or most == 1 else "1,2"
    try:
        store = _sweep(folder, [*own, "--replicas", replicas, *_SMALLEST], Path.cwd())
        _harness(["verify", "s", "--runs-dir", str(folder / "runs")], Path.cwd())
    except NonconformingError as error:
        text = f"{plugin.what} cannot be measured: {error}"
        raise NonconformingError(f"{_place(plugin, folder)}{text}") from None
    without = [of for of in load_study(store).matches if of.is_planned and of.reason]
    if without:
        raise NonconformingError(
            f"{place_of(plugin)}{plugin.what}: {without[0].num_replicas} replicas do"
            f" not match one: {without[0].reason}"
        )


def _sweep(folder: Path, words: Sequence[str], start: Path) -> Store:
    """Measures a study of the name ``s``; returns it."""
    runs = ["--study", "s", "--runs-dir", str(folder / "runs")]
    _harness(["sweep", *words, *runs], start, folder / "runs" / "s")
    return Store.open(folder / "runs" / "s")


def _harness(words: Sequence[str], start: Path, study: Path | None = None) -> None:
    paths = [*plugins.folders(), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=start,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SEC,
        check=False,
    )
    if done.returncode == 0:
        return
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    reason = said[-1].removeprefix("error: ") if said else done.stderr[-300:]
    failures = [failure["reason"] for failure in _failures(study)] if study else []
    reason = failures[0] if failures else reason
    raise NonconformingError(f"{words[0]} ended with {done.returncode}: {reason}")


def _place(plugin: Plugin, folder: Path) -> str:
    """Returns the last line of the plugin in what a trial said of its failure."""
    own = {str(path): path.name for path in plugin_code.files(plugin).values()}
    for failure in _failures(folder / "runs" / "s"):
        lines = re.findall(r'File "([^"]+)", line (\d+)', str(failure["traceback"]))
        found = [(own[path], line) for path, line in lines if path in own]
        if found:
            return "{}:{}: ".format(*found[-1])
    return place_of(plugin)


def _failures(study: Path) -> list[dict[str, Any]]:
    """Returns what the trials of a study recorded of their failures, in their order."""
    statuses = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(study.glob("trials/*/status.json"))
    ]
    return [status["failure"] for status in statuses if status.get("failure")]

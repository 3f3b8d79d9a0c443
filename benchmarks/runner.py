"""How benchmarks measure: in fresh pinned processes, in turns, as ratios of pairs.

A script has functions that measure and return what JSON knows. ``measure`` runs one in
a process of its own, ``take_turns`` interleaves what is compared, and ``print_ratio``
and ``print_value`` show estimates of ``results.statistics.estimates``: each with its
interval and its n.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.child import MARK

# Children import this module, too, and some time what they import: the standard library
# is all that it needs there.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from results.statistics.estimates import Estimate

ROOT = Path(__file__).resolve().parents[1]
CORES = tuple(sorted(os.sched_getaffinity(0))[:2])
"""Two cores, on which everything is measured."""

_VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


class BenchmarkError(RuntimeError):
    """A process ended before it had measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """A fresh process that measures."""

    function: Callable[..., Any]  # Measures; at the top level of a module.
    # Its keyword arguments, of what JSON knows.
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # To which the process pins itself, before it imports anything else.
    cores: Sequence[int] = CORES
    # Environment variables to add or replace.
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Module and function."""
        module = self.function.__module__
        if module == "__main__":
            module = sys.modules[module].__spec__.name
        return f"{module}.{self.function.__name__}"

    def argv(self, result: str = "") -> list[str]:
        """The command line; with a path, the result is written there."""
        module, _, function = self.name.rpartition(".")
        plan = {
            "module": module,
            "function": function,
            "arguments": dict(self.arguments),
            "cores": list(self.cores),
            "result": result,
        }
        return [sys.executable, "-m", "benchmarks.child", json.dumps(plan)]


def measure(function: Callable[..., Any], **how: Any) -> Any:
    """What a function returns in a fresh process."""
    process = Process(function=function, **how)
    with _started(process) as running:
        return _read(running, process)


@contextlib.contextmanager
def together(
    processes: Sequence[Process],
) -> Iterator[tuple[list[Any], Callable[[], list[Any]]]]:
    """Starts fresh processes that measure at once, as often as they are asked."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_started(process)) for process in processes]

        def read() -> list[Any]:
            return [_read(*one) for one in zip(running, processes, strict=True)]

        def resume() -> list[Any]:
            for one in running:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            return read()

        yield read(), resume


def measure_cluster(
    process: Process, *, timeout_sec: float, kinds: Sequence[str], **counts: Any
) -> Any:
    """What one process of a cluster returns; the others return None."""
    from replicator.cluster.local_cluster import LocalCluster

    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        with LocalCluster(
            process.argv(str(result)),
            env={
                **_VARIABLES,
                "PYTHONPATH": os.pathsep.join(paths),
                **process.variables,
            },
            log_dir=folder,
            **counts,
        ) as cluster:
            cluster.check(timeout_sec, kinds=kinds)
        return json.loads(result.read_text(encoding="utf-8"))


def take_turns(
    ways: Mapping[str, Callable[[], Any]],
    num_repeats: int,
    *,
    num_warmups: int = 0,
    show: Callable[[Any], str] | None = None,
) -> dict[str, list[Any]]:
    """Measures every way once per repeat, in reversed order every other time (ABBA)."""
    found: dict[str, list[Any]] = {name: [] for name in ways}
    for repeat in range(-num_warmups, num_repeats):
        for name in list(ways)[:: -1 if repeat % 2 else 1]:
            figure = ways[name]()
            if repeat < 0:
                continue
            found[name].append(figure)
            if show is not None:
                print(f"repeat {repeat} {name:31} {show(figure)}", flush=True)
    return found


def paired_ratio(
    numerators: Sequence[float], denominators: Sequence[float]
) -> Estimate:
    """The ratio of figures that were measured in the same repeats."""
    from results.statistics.estimates import ratio

    pairs = list(zip(numerators, denominators, strict=True))
    first = {repeat: pair[0] for repeat, pair in enumerate(pairs)}
    second = {repeat: pair[1] for repeat, pair in enumerate(pairs)}
    return ratio(first, second)


def print_ratio(
    title: str,
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> bool:
    """Prints a ratio of pairs, as ``print_value`` prints a figure."""
    estimate = paired_ratio(numerators, denominators)
    return _print(title, estimate, at_least=at_least, at_most=at_most)


def print_value(
    title: str,
    values: Sequence[float],
    unit: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> bool:
    """Prints a geometric mean with its 95 % interval, its n and its target."""
    from results.statistics.estimates import geometric_mean

    estimate = geometric_mean(values, unit=unit)
    return _print(title, estimate, at_least=at_least, at_most=at_most)


def make_parser(text: str, *, num_repeats: int, name: str = "--repeats") -> Any:
    """A parser of the command line of a script, whose first line is its description."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument(
        name,
        dest="num_repeats",
        type=positive,
        default=num_repeats,
        metavar="N",
        help="default: %(default)s",
    )
    return parser


def positive(text: str) -> int:
    """A number of times, at least once."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return number


def _print(
    title: str, estimate: Estimate, *, at_least: float | None, at_most: float | None
) -> bool:
    interval = "[no interval]"
    if estimate.low is not None and estimate.high is not None:
        interval = f"[{estimate.low:.4g}, {estimate.high:.4g}]"
    unit = f" {estimate.unit}" if estimate.unit else ""
    text = f"{title:55} {estimate.value:.4g} {interval}{unit}, n = {estimate.n}"
    is_reached = True
    for words, target in (("at least", at_least), ("at most", at_most)):
        if target is None:
            continue
        is_met = (
            estimate.value >= target
            if words == "at least"
            else estimate.value <= target
        )
        is_reached = is_reached and is_met
        verdict = "reached" if is_met else "MISSED"
        text += f"; target {words} {target:g}: {verdict}"
    print(text, flush=True)
    return is_reached


@contextlib.contextmanager
def _started(process: Process) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        process.argv(),
        cwd=ROOT,
        env={**os.environ, **_VARIABLES, **process.variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        except BaseException:
            running.kill()
            raise
        running.communicate()
    if running.returncode:
        raise BenchmarkError(
            f"the process of {process.name} ended with exit code {running.returncode} "
            f"after it had measured; its own error is above"
        )


def _read(running: subprocess.Popen[str], process: Process) -> Any:
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    raise BenchmarkError(
        f"the process of {process.name} ended with exit code {running.wait()} before "
        f"it had measured; its own error is above"
    )

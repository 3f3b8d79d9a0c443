"""How benchmarks measure: in fresh pinned processes, in turns, as ratios of pairs.

A script has functions that measure and return what JSON knows, a table of the ways to
run them, and a table of figures. ``run`` measures all ways in turns and prints each
figure with its interval, its n and its target. ``python -m benchmarks.runner PLAN`` is
one of the fresh processes. A function that is a generator yields what it knows when it
is ready, and measures whenever it is resumed by a line of standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Children import this module, too, and some time what they import: the standard library
# is all that it needs there.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Ways = Mapping[str, Callable[[], Any]]

ROOT = Path(__file__).resolve().parents[1]
CORES = tuple(sorted(os.sched_getaffinity(0))[:2])
"""Two cores, on which everything is measured."""
MARK = "measured: "
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
        module = self.function.__module__
        if module == "__main__":
            module = sys.modules[module].__spec__.name
        return f"{module}.{self.function.__name__}"

    def argv(self, result: str = "") -> list[str]:
        plan = [self.name, dict(self.arguments), list(self.cores), result]
        return [sys.executable, "-m", "benchmarks.runner", json.dumps(plan)]


def measure(
    function: Callable[..., Any],
    *,
    cores: Sequence[int] = CORES,
    variables: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """What a function returns in a fresh process."""
    process = Process(
        function=function, arguments=arguments, cores=cores, variables=variables or {}
    )
    with together([process]) as ((result,), _):
        return result


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


def measure_cluster(
    process: Process, *, timeout_sec: float, kinds: Sequence[str], **counts: Any
) -> Any:
    """What one process of a cluster returns; the others return None."""
    from replicator.cluster.local_cluster import LocalCluster

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        with LocalCluster(
            process.argv(str(result)),
            env={**_VARIABLES, "PYTHONPATH": path, **process.variables},
            log_dir=folder,
            **counts,
        ) as cluster:
            cluster.check(timeout_sec, kinds=kinds)
        return json.loads(result.read_text(encoding="utf-8"))


def interleave(
    ways: Ways,
    num_repeats: int,
    *,
    num_warmups: int = 0,
    show: Callable[[Any], str] | None = None,
) -> dict[str, list[Any]]:
    """Measures every way once per repeat, in reversed order every other time (ABBA)."""
    collected: dict[str, list[Any]] = {name: [] for name in ways}
    for repeat in range(-num_warmups, num_repeats):
        for name in list(ways)[:: -1 if repeat % 2 else 1]:
            figure = ways[name]()
            if repeat < 0:
                continue
            collected[name].append(figure)
            if show is not None:
                print(f"repeat {repeat} {name:31} {show(figure)}", flush=True)
    return collected


def seconds(call: Callable[[], Any], number: int = 1) -> float:
    """The time of one call, from so many."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def medians(
    calls: Ways, num_blocks: int, number: int = 1, *, num_warmups: int = 0
) -> dict[str, float]:
    """By way, the median over blocks of the seconds of one call."""
    import statistics

    blocks = {
        name: functools.partial(seconds, call, number) for name, call in calls.items()
    }
    collected = interleave(blocks, num_blocks, num_warmups=num_warmups)
    return {name: statistics.median(times) for name, times in collected.items()}


class Figure(NamedTuple):
    """What is printed of all repeats: a value, or a ratio of pairs."""

    title: str
    of: tuple[str, ...]  # The way, and keys of what it returned.
    over: tuple[str, ...] = ()  # Of a ratio: the same of what it is divided by.
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None


def run(
    text: str,
    ways: Ways,
    figures: Sequence[Figure],
    *,
    num_repeats: int,
    show: Callable[[Any], str] | None = str,
) -> None:
    """The whole script: reads its command line, measures and prints."""
    parser = make_parser(text, num_repeats=num_repeats)
    parser.add_argument("--cases", nargs="+", choices=ways, default=list(ways))
    given = parser.parse_args()
    chosen = {name: ways[name] for name in given.cases}
    print_figures(figures, interleave(chosen, given.num_repeats, show=show))


def print_figures(figures: Sequence[Figure], measured: Mapping[str, list[Any]]) -> None:
    for title, sides, over, unit, at_least, at_most in figures:
        if not {sides[0], *over[:1]} <= measured.keys():
            continue
        values, others = (
            [
                functools.reduce(operator.getitem, side[1:], one)
                for one in measured[side[0]]
            ]
            if side
            else None
            for side in (sides, over)
        )
        target = {"unit": unit, "at_least": at_least, "at_most": at_most}
        print_figure(title, values, others, **target)


def print_figure(
    title: str,
    values: Sequence[float],
    over: Sequence[float] | None = None,
    *,
    unit: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
) -> bool:
    """Prints a geometric mean, or a ratio of pairs, with its 95 % interval and n."""
    from results.statistics import estimates

    estimate = (
        estimates.geometric_mean(values, unit=unit)
        if over is None
        else estimates.ratio(dict(enumerate(values)), dict(enumerate(over)))
    )
    interval = "[no interval]"
    if estimate.low is not None and estimate.high is not None:
        interval = f"[{estimate.low:.4g}, {estimate.high:.4g}]"
    text = f"{title:55} {estimate.value:.4g} {interval}"
    text += f"{' ' * bool(unit)}{unit}, n = {estimate.n}"
    is_reached = True
    for words, target, is_met in (
        ("at least", at_least, operator.ge),
        ("at most", at_most, operator.le),
    ):
        if target is not None:
            is_reached &= is_met(estimate.value, target)
            verdict = "reached" if is_reached else "MISSED"
            text += f"; target {words} {target:g}: {verdict}"
    print(text, flush=True)
    return is_reached


def make_parser(text: str, *, num_repeats: int) -> Any:
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument(
        "--repeats",
        dest="num_repeats",
        type=positive,
        default=num_repeats,
        metavar="N",
        help="default: %(default)s",
    )
    return parser


def positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return number


def set_threads(num_inter_op: int | None = None) -> None:
    """One thread per task, and as many tasks at once as the process has cores."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(
        num_inter_op or len(os.sched_getaffinity(0))
    )


def program(workload: str, repl: Any, *, batch: int, **more: Any) -> Any:
    """The program of a workload, by default at preset ``laptop`` on synthetic data."""
    from workloads import WORKLOADS

    plan = {"preset": "laptop", "data": "synthetic", "seed": 0, "options": {}} | more
    return WORKLOADS[workload].build(repl, per_replica_batch_size=batch, **plan)


def main() -> None:
    """Does what the plan of a fresh process says."""
    name, arguments, cores, path = json.loads(sys.argv[1])
    if cores:
        os.sched_setaffinity(0, cores)
    module, _, function = name.rpartition(".")
    result = getattr(importlib.import_module(module), function)(**arguments)
    if path:
        if result is not None:  # one process of a cluster has it
            Path(path).write_text(json.dumps(result), encoding="utf-8")
        return
    is_stepwise = isinstance(result, types.GeneratorType)
    for value in result if is_stepwise else (result,):
        print(MARK + json.dumps(value), flush=True)
        if is_stepwise and not sys.stdin.readline():
            break


if __name__ == "__main__":
    main()

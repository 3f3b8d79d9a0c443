"""Benchmarks: which are run, fresh pinned processes, in turns, one form of figures."""

import argparse
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import replicator
from harness import command_line
from workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import json, os, sys, time

def place(word):
    print("talk that nobody needs")
    return [word, os.getpid(), sorted(os.sched_getaffinity(0)), "numpy" in sys.modules]

def in_two_steps(seconds):
    time.sleep(seconds)
    while True:
        yield time.monotonic()

def fail():
    raise ValueError("nothing to measure")

def fail_late():
    try:
        yield 1
        yield 2
    finally:
        os._exit(3)

def index():
    own = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    return own if own else None
"""


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def runner(load):
    return load("runner")


@pytest.fixture
def timed(tmp_path, monkeypatch):
    path = tmp_path / "timed_functions.py"
    path.write_text(MODULE, encoding="utf-8")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.processes
def test_a_function_measures_in_a_fresh_process_on_its_cores(runner, timed):
    core = max(os.sched_getaffinity(0))

    word, pid, cores, has_numpy = runner.measure(
        timed.place, word="first", cores=[core]
    )

    assert ("first", [core], False) == (word, cores, has_numpy)
    assert os.getpid() != pid


@pytest.mark.processes
def test_processes_measure_together_when_all_are_ready(runner, timed):
    """The quick one waits for the slow one, and both end when nobody asks any more."""
    processes = [
        runner.Process(function=timed.in_two_steps, arguments={"seconds": seconds})
        for seconds in (0.0, 0.5)
    ]

    with runner.together(processes) as (ready, resume):
        first, second = resume(), resume()

    assert max(ready) <= min(first) <= max(first) <= min(second)


@pytest.mark.processes
def test_a_process_that_fails_is_an_error(runner, timed):
    message = r"process of timed_functions.fail ended with exit code 1 before it had"
    with pytest.raises(runner.BenchmarkError, match=message):
        runner.measure(timed.fail)

    message = r"timed_functions.fail_late ended with exit code 3 after it had measured"
    with (
        pytest.raises(runner.BenchmarkError, match=message),
        runner.together([runner.Process(function=timed.fail_late)]) as (ready, resume),
    ):
        assert ([1], [2]) == (ready, resume())


@pytest.mark.processes
def test_one_process_of_a_cluster_has_the_result(runner, timed):
    process = runner.Process(function=timed.index, cores=())

    found = runner.measure_cluster(
        process, timeout_sec=60, kinds=["worker"], num_workers=2
    )

    assert 1 == found


def test_ways_take_turns_in_reversed_order_every_other_time(runner, capsys):
    """Warm-ups run, but do not count, and figures are printed when they are there."""
    order = []

    def way(name):
        def measure():
            order.append(name)
            return len(order)

        return measure

    found = runner.interleave(
        {name: way(name) for name in "ab"}, 2, num_warmups=1, show="{} s".format
    )

    assert ["b", "a", "a", "b", "b", "a"] == order
    assert {"a": [3, 6], "b": [4, 5]} == found
    assert re.search(r"repeat 0 a +3 s\nrepeat 0 b +4 s\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("values", "target", "is_reached", "text"),
    [
        ([2.0, 2.0], {"at_least": 1.9}, True, "2 [2, 2] s, n = 2; target at least 1.9"),
        ([2.0, 2.0], {"at_most": 1.9}, False, "target at most 1.9: MISSED\n"),
        ([2.0], {}, True, "2 [no interval] s, n = 1\n"),
    ],
)
def test_a_figure_has_its_interval_its_n_and_its_target(
    runner, capsys, values, target, is_reached, text
):
    assert is_reached == runner.print_figure("title", values, unit="s", **target)
    assert text in capsys.readouterr().out


def test_a_ratio_is_that_of_pairs(runner, capsys):
    assert runner.print_figure("ours / theirs", [2.0, 20.0], [1.0, 10.0], at_least=1.9)
    assert "ours / theirs" in (text := capsys.readouterr().out)
    assert "2 [2, 2], n = 2; target at least 1.9: reached\n" in text


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", ""])
def test_a_number_of_repeats_is_at_least_one(runner, text):
    message = rf"'{text}' is not an integer of at least 1"
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        runner.positive(text)


def test_compression_joins_the_options_of_the_workload(load, monkeypatch):
    bench = load("bench_multi_worker")
    parameters = inspect.signature(
        replicator.Replicator.wrap_optimizer
    ).parameters.values()
    options = {
        one.name: one.default
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.name != "compression"
    }
    wrapped = []

    def build(repl, **_fields):
        repl.wrap_optimizer("sgd", **options)
        return SimpleNamespace(run=None)

    monkeypatch.setitem(WORKLOADS, "resnet50", SimpleNamespace(build=build))
    repl = SimpleNamespace(wrap_optimizer=lambda _, **given: wrapped.append(given))
    bench.build(repl, "bfloat16")

    assert "loss_scale" in options
    assert [{**options, "compression": "bfloat16"}] == wrapped


@pytest.fixture
def commands(load, monkeypatch):
    benchmarks = load("__main__")
    started = []

    def run(command, *, check):
        assert not check
        started.append(command)
        return subprocess.CompletedProcess(command, "bench_report" in command[-1])

    monkeypatch.setattr(benchmarks.subprocess, "run", run)
    return started


def test_names_choose_what_is_measured(load, commands, capsys):
    benchmarks = load("__main__")
    assert 0 == benchmarks.main(["workers", "input"])
    assert [benchmarks.COMMANDS[name] for name in ("workers", "input")] == commands
    commands.clear()

    assert 1 == benchmarks.main([])
    assert list(benchmarks.COMMANDS.values()) == commands
    assert "not measured: report\n" in capsys.readouterr().err
    commands.clear()

    with pytest.raises(SystemExit) as raised:
        benchmarks.main(["report", "worker"])
    assert (2, []) == (raised.value.code, commands)
    assert "unknown benchmark 'worker'; known are command-line, " in (
        capsys.readouterr().err
    )


def test_every_benchmark_is_there(load):
    """A renamed file would otherwise be noticed in the middle of a run."""
    for command in load("__main__").COMMANDS.values():
        assert sys.executable == command[0]
        (name,) = (part for part in command if "bench_" in part)
        path = name.removesuffix(".py").replace(".", "/") + ".py"
        assert (ROOT / path).is_file(), path
    done = CliRunner().invoke(command_line, load("bench_measuring").PLAN)
    assert "1084 trials of 19 cases" in done.output

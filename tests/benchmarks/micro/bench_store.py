"""A study of 56 trials: it is written, read, and reported as text."""

import importlib
import itertools

import pytest

from harness import main

NUM_TRIALS = 56


def _make(folder):
    synthetic = importlib.import_module("synthetic")
    shape = synthetic.Shape(replicas=(1, 2, 4, 8), repeats=4)
    return synthetic.make_store(folder, shape)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert NUM_TRIALS == len(_make(folder / "s").trial_ids())
    return folder


def test_write_56_trials(benchmark, tmp_path):
    """Every record is synced to disk."""
    numbers = itertools.count()
    benchmark.pedantic(lambda: _make(tmp_path / f"s{next(numbers)}"), rounds=3)


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_report_56_trials(benchmark, runs, tmp_path, form):
    output = tmp_path / "report"
    options = [f"--format={form}", f"--output={output}", f"--runs-dir={runs}"]
    code = benchmark.pedantic(
        lambda: main(["report", "s", *options]), rounds=3, warmup_rounds=1
    )

    assert 0 == code
    assert output.stat().st_size > 0

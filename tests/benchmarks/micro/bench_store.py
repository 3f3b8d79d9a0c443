"""The store: a study of 56 trials is written, opened and read."""

import importlib
import itertools

import pytest

from results.figures.frame import points_frame
from results.study.cases import load_study

NUM_TRIALS = 56


def _shape():
    synthetic = importlib.import_module("synthetic")
    return synthetic.Shape(replicas=(1, 2, 4, 8), repeats=4)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A study that nobody measured."""
    synthetic = importlib.import_module("synthetic")
    made = synthetic.make_store(tmp_path_factory.mktemp("s") / "s", _shape())
    assert NUM_TRIALS == len(made.trial_ids())
    return made


def test_write_56_trials(benchmark, tmp_path):
    """Every record is synced to disk."""
    synthetic = importlib.import_module("synthetic")
    numbers = itertools.count()
    benchmark.pedantic(
        lambda: synthetic.make_store(tmp_path / f"s{next(numbers)}", _shape()),
        rounds=3,
    )


def test_load_56_trials(benchmark, store):
    """All records are read and checked."""
    assert NUM_TRIALS == len(benchmark(load_study, store).planned)


def test_frame_of_56_trials(benchmark, store):
    """What CSV and notebooks have: figures with intervals."""
    assert len(benchmark.pedantic(points_frame, [store], rounds=3)) > 0

"""Files that callbacks of ``fit`` write over workers, and batches of odd size."""

import contextlib
import re
from pathlib import Path

import case_cluster
import keras
import numpy as np
import pytest
from loading import load

import replicator
from replicator._tf import distribute as _tf_distribute
from replicator.strategy import datasets

FOLDER = Path(__file__).parent
TOLERANCE = 1e-5  # relative: sums of float32 in another order


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return _ran(tmp_path_factory.mktemp("files"), "odd", "shared")


def _ran(folder, *cases):
    return case_cluster.ran(
        "files_cases", folder, path=FOLDER, cases=cases, num_workers=2
    )


@pytest.mark.processes
def test_a_batch_of_odd_size_is_that_of_one_device_over_workers(workers):
    """Two and three examples: the steps of both had to have the same size."""
    expected = load(FOLDER / "files_cases.py").odd()

    for found in workers.values("odd"):
        for one, two in zip(expected, found, strict=True):
            np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=1e-6)


@pytest.mark.processes
def test_a_file_of_two_workers_is_refused_before_it_is_written(workers):
    """They ended in an error of HDF5, or in a file that was neither's."""
    own = r"in each of 2 worker processes; give each .*\{repl\.worker_id\}.*is_chief"
    patterns = [
        rf"ModelCheckpoint writes .*best\.keras {own}",
        rf"CSVLogger writes .*log\.csv {own}",
        rf"TensorBoard writes .*board {own}",
        r"BackupAndRestore saves in each of 2 .*save_freq=\"epoch\" if repl\.is_chief",
    ]

    for messages, files in workers.values("shared"):
        assert len(patterns) == len(messages)
        for pattern, message in zip(patterns, messages, strict=True):
            assert "\n" not in message
            assert re.search(pattern, message)
        assert [] == files


@pytest.mark.processes
@pytest.mark.full
def test_an_interrupted_training_of_workers_goes_on_as_one_device(tmp_path):
    """What the messages say to write: the chief saves, and all resume from it.

    Only in the full run, as it takes a cluster more.
    """
    alone = load(FOLDER / "files_cases.py").alone(contextlib.nullcontext())

    for outcome in _ran(tmp_path, "resumed").values("resumed"):
        assert [2, 1] == outcome["epochs"]
        for key in ("weights", "saved"):
            for one, two in zip(alone, outcome[key], strict=True):
                np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=1e-6)


def test_a_strategy_finds_the_callbacks_of_fit(monkeypatch):
    """Keras passes them to nothing that a strategy has."""
    seen = []
    split = datasets.split

    def recorded(*args):
        seen.append(_tf_distribute.callbacks_of_fit())
        return split(*args)

    monkeypatch.setattr(datasets, "split", recorded)
    with replicator.create("single").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callback = keras.callbacks.LambdaCallback()
    x = np.ones([4, 4], np.float32)
    model.fit(x, x[:, :1], verbose=0, callbacks=[callback])
    model.evaluate(x, x[:, :1], verbose=0)

    assert [[callback], None] == seen

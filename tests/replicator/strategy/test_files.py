"""Callbacks of ``fit`` that write files, in one process and in several."""

from __future__ import annotations

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


@pytest.fixture
def workers(request, tmp_path):
    """Two workers that ran the case of a test."""
    return case_cluster.ran(
        "files_cases", tmp_path, path=FOLDER, cases=[request.param], num_workers=2
    )


@pytest.mark.processes
@pytest.mark.parametrize("workers", ["shared"], indirect=True)
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
@pytest.mark.parametrize("workers", ["resumed"], indirect=True)
def test_an_interrupted_training_of_workers_goes_on_as_one_device(workers):
    """What the messages say to write: the chief saves, and all resume from it.

    Only in the full run, as it takes a cluster more.
    """
    alone = load(FOLDER / "files_cases.py").alone(contextlib.nullcontext())

    for outcome in workers.values("resumed"):
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

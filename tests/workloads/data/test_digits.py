"""The embedded digits: their split, their bytes, and how they are prepared."""

import collections
import pathlib

import case_cluster
import fork_server
import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from workloads import child_process
from workloads.data import images, sources
from workloads.data.digits import digits_dataset_builder

TIMEOUT_SEC = 300


def test_digits_split_is_exact_and_stratified():
    """1,438 and 359 digits, disjoint, each class with its share to one example."""
    train, test = digits_dataset_builder.stratified_split()
    labels = load_digits().target

    assert (len(train), len(test)) == (1438, 359)
    assert set(range(1797)) == {*train, *test}
    share = np.bincount(labels) * 359 / 1797
    assert np.abs(np.bincount(labels[test]) - share).max() < 1


def test_digits_split_is_fixed():
    """The split is part of the data set's version: these are its first indices."""
    _, test = digits_dataset_builder.stratified_split()

    assert list(test[:5]) == [2, 4, 5, 21, 27]


def test_digits_are_stored_as_png_and_decode_to_scikit_learns_pixels(digits):
    """The bytes in the TFRecords are PNG and hold the original 17 levels of ink."""
    raw = digits.builder.as_dataset(
        split="test", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = [example["image"] for example in raw.as_numpy_iterator()]
    decoded = np.stack(
        [images.decode(e, encoding="png", shape=(8, 8, 1)).numpy() for e in encoded]
    )
    ink = np.round(decoded[..., 0].astype(np.float64) * 16 / 255)
    _, test = digits_dataset_builder.stratified_split()
    expected = collections.Counter(i.tobytes() for i in load_digits().images[test])

    assert all(e.startswith(b"\x89PNG") for e in encoded)
    assert expected == collections.Counter(i.tobytes() for i in ink)


_PREPARE = """
import os, pathlib, sys
from workloads.data import sources
path = sources.prepare_digits()
pathlib.Path(sys.argv[1]).write_text(" ".join(sorted(os.listdir(path))))
"""


@pytest.mark.processes
def test_digits_are_prepared_once_by_many_processes(tmp_path, monkeypatch):
    """Two processes that prepare at once both get the same complete set."""
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path))
    program = tmp_path / "prepare.py"
    program.write_text(_PREPARE)
    names = [str(tmp_path / name) for name in ("one", "other")]
    # Of processes with TensorFlow that have run no op.
    processes = [
        fork_server.server(**case_cluster.ENV).start(
            [str(program), name],
            env=child_process.environment(case_cluster.ENV),
            log=tmp_path / "log",
        )
        for name in names
    ]
    codes = [process.wait(TIMEOUT_SEC) for process in processes]
    assert [0, 0] == codes, (tmp_path / "log").read_text()
    found = [pathlib.Path(name).read_text().split() for name in names]
    complete = sorted(path.name for path in (tmp_path / "digits/1.0.0").iterdir())
    source = sources.open_source("digits")

    assert [complete] * 2 == found
    assert (1438, 359) == (source.num_train_examples, source.num_evaluation_examples)
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def test_unwritable_cache_says_what_to_set(tmp_path, monkeypatch):
    """A file in the way of the cache directory is one clear line."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path / "file" / "cache"))

    with pytest.raises(
        ValueError, match=r"digits cannot be prepared .*set REPLICATOR_DATA_DIR"
    ):
        sources.open_source("digits")

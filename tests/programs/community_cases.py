"""The programs of libraries as cases of a cluster, which run them on one strategy."""

import functools
import importlib
from pathlib import Path

import keras
import tensorflow as tf

import replicator


def set_up(_folder):
    """The strategy that every program runs on."""
    return (replicator.create("multi_worker", num_replicas=2).as_strategy(),)


def run(name, strategy=None):
    """What a program returns; on one device without a strategy."""
    keras.utils.set_random_seed(7)
    module = importlib.import_module(f"communities.{name}")
    found = module.train(strategy or tf.distribute.get_strategy())
    return [value if isinstance(value, list) else _plain(value) for value in found]


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


CASES = {
    path.stem: functools.partial(run, path.stem)
    for path in (Path(__file__).parent / "communities").glob("*.py")
}

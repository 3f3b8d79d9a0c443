"""The programs of libraries as cases of a cluster, which run them on one strategy."""

import functools
import importlib
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import replicator

FOLDER = Path(__file__).parent / "communities"
PROGRAMS = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", "data"})


def set_up(_folder):
    return (replicator.create("multi_worker", num_replicas=2).as_strategy(),)


def run(name, strategy=None):
    keras.utils.set_random_seed(7)
    module = importlib.import_module(f"communities.{name}")
    found = module.train(strategy or tf.distribute.get_strategy())
    return [np.asarray(value).tolist() for value in found]


CASES = {name: functools.partial(run, name) for name in PROGRAMS}

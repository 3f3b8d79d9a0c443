"""Whether a program of Keras gives on replicas what it gives on one device."""

import contextlib

import keras
import numpy as np


def outcomes(program, repl):
    """What a function of a scope returns on one device and on replicas."""
    found = []
    for scope in (contextlib.nullcontext(), repl.scope()):
        keras.utils.clear_session()  # names of layers and metrics
        keras.utils.set_random_seed(1)
        found.append(program(scope))
    return found


def assert_equal(program, repl, rtol=1e-5, atol=1e-6):
    """Compares all numbers in the nests: sums of float32 in another order."""
    one, other = map(keras.tree.flatten_with_path, outcomes(program, repl))
    assert [path for path, _ in one] == [path for path, _ in other]
    for (path, expected), (_, found) in zip(one, other, strict=True):
        np.testing.assert_allclose(found, expected, rtol, atol, err_msg=str(path))

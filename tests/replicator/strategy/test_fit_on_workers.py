"""``fit`` and reductions on workers with two replicas each, and files of callbacks."""

import contextlib
import functools
import re
from pathlib import Path

import case_cluster
import numpy as np
import pytest
from loading import load

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
CASES = ("counted", "values", "turns", "unseeded")


def _ran(backend, folder, *cases, **options):
    return case_cluster.ran(
        "workers_cases",
        folder,
        path=FOLDER,
        cases=cases,
        num_workers=2,
        options={"backend": backend},
        **options,
    )


@pytest.fixture(scope="module", params=["multi_worker", "multi_worker_in_graph"])
def workers(request, tmp_path_factory):
    backend, folder = request.param, tmp_path_factory.mktemp(request.param)
    if backend == "multi_worker":
        return backend, _ran(backend, folder, *CASES, "fit", "shared")
    return backend, _ran(backend, folder, *CASES, "wrapped", runners=[("worker", 0)])


@functools.cache
def _alone(case):
    """What a function of the cases finds on one device."""
    module = load(FOLDER / "workers_cases.py")
    return getattr(module, case)(contextlib.nullcontext())


def _assert_close(expected, found):
    assert list(expected) == list(found)
    for key, value in expected.items():
        if key == "log":
            assert value == found[key]
        else:  # sums of float32 in another order
            np.testing.assert_allclose(found[key], value, 1e-5, 1e-6, err_msg=key)


@pytest.mark.parametrize("expected", ["fitted", "read_once"])
def test_fit_over_workers_equals_one_device(workers, expected):
    """With an optimizer of Keras, which sums, and with a wrapped one, which averages.

    Sources are read as on one device, not once more for the shapes of a model.
    """
    backend, ran = workers
    case = "fit" if backend == "multi_worker" else "wrapped"
    for outcome in ran.values(case if expected == "fitted" else "counted"):
        _assert_close(_alone(expected), outcome)


def test_values_of_all_workers_are_reduced_and_joined(workers):
    """Steps and reductions of one function take turns: they ran at once."""
    _, ran = workers
    for found in ran.values("values"):
        assert 6.0 == found["sum"] == found["sum in a function"]
        assert 2.0 == pytest.approx(found["mean of rows"])
        assert [0.0, *[1.0] * 2, *[2.0] * 3, *[3.0] * 4] == found["gathered"]
    for outcome in ran.values("turns"):
        assert [[18.0, 406.0, 6.0]] * 2 == outcome["found"]
        assert 812.0 == outcome["total"]


def test_batches_in_an_unknown_order_are_refused(workers):
    """Where each process takes its part."""
    backend, ran = workers
    is_shared_out = backend == "multi_worker"

    for message in ran.values("unseeded"):
        assert is_shared_out == ("keras.utils.set_random_seed(seed)" in message)


def test_a_file_of_two_workers_is_refused_before_it_is_written(workers):
    """They ended in an error of HDF5, or in a file that was neither's."""
    own = r"in each of 2 worker processes; give each .*\{repl\.worker_id\}.*is_chief"
    patterns = [
        rf"ModelCheckpoint writes .*best\.keras {own}",
        rf"CSVLogger writes .*log\.csv {own}",
        rf"TensorBoard writes .*board {own}",
        r"BackupAndRestore saves in each of 2 .*save_freq=\"epoch\" if repl\.is_chief",
    ]

    backend, ran = workers
    if backend != "multi_worker":
        pytest.skip("one process runs the program")
    for messages, files in ran.values("shared"):
        assert len(patterns) == len(messages)
        for pattern, message in zip(patterns, messages, strict=True):
            assert "\n" not in message
            assert re.search(pattern, message)
        assert [] == files

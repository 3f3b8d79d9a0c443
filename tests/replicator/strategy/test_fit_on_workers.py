"""``fit`` and reductions on workers with two replicas each, and files of callbacks."""

import contextlib
import re
from pathlib import Path

import case_cluster
import numpy as np
import pytest
from loading import load

pytestmark = pytest.mark.processes


FOLDER = Path(__file__).parent
TOLERANCE = 1e-5  # relative: sums of float32 in another order


@pytest.fixture(scope="module", params=["multi_worker", "multi_worker_in_graph"])
def workers(request, tmp_path_factory):
    is_served = request.param == "multi_worker_in_graph"
    options = {"runners": [("worker", 0)]} if is_served else {}
    ran = case_cluster.ran(
        "workers_cases",
        tmp_path_factory.mktemp(request.param),
        path=FOLDER,
        num_workers=2,
        options={"backend": request.param},
        **options,
    )
    return ran, request.param


@pytest.fixture(scope="module")
def alone():
    return load(FOLDER / "workers_cases.py").alone()


@pytest.mark.parametrize("case", ["fit", "wrapped"])
def test_fit_over_workers_equals_one_device(workers, alone, case):
    """Shuffled, with a split, a callback that reads scores, and all predictions.

    With an optimizer of Keras, which sums, and with a wrapped one, which averages.
    """
    ran, _ = workers
    expected = alone

    for outcome in ran.values(case):
        for key, value in expected.items():
            if key == "weights":
                pairs = zip(value, outcome[key], strict=True)
            else:
                pairs = [(value, outcome[key])]
            for one, found in pairs:
                np.testing.assert_allclose(found, one, TOLERANCE, 1e-6, err_msg=key)


def test_each_process_reads_its_source_as_one_device_does(workers):
    """Not once more for the shapes of a model that is not built."""
    ran, backend = workers
    expected = load(FOLDER / "workers_cases.py").read_once(contextlib.nullcontext())

    for outcome in ran.values("counted"):
        assert outcome["log"] == expected["log"], backend
        np.testing.assert_allclose(outcome["losses"], expected["losses"], TOLERANCE)


def test_values_of_all_workers_are_reduced_and_joined(workers):
    ran, _ = workers

    for found in ran.values("values"):
        assert 6.0 == found["sum"] == found["sum in a function"]
        assert 2.0 == pytest.approx(found["mean of rows"])
        assert [0.0, *[1.0] * 2, *[2.0] * 3, *[3.0] * 4] == found["gathered"]


def test_steps_and_reductions_of_one_function_take_turns(workers):
    """They ran at once: an error of keys, or sums of what does not belong together."""
    ran, _ = workers

    for outcome in ran.values("turns"):
        assert [[18.0, 406.0, 6.0]] * 2 == outcome["found"]
        assert 812.0 == outcome["total"]


def test_batches_in_an_unknown_order_are_refused(workers):
    """Where each process takes its part."""
    ran, backend = workers
    is_shared_out = backend == "multi_worker"

    for message in ran.values("unseeded"):
        assert is_shared_out == ("keras.utils.set_random_seed(seed)" in message)


@pytest.fixture(scope="module")
def file_workers(tmp_path_factory):
    return _ran_on_files(tmp_path_factory.mktemp("files"), "odd", "shared")


def _ran_on_files(folder, *cases):
    return case_cluster.ran(
        "files_cases", folder, path=FOLDER, cases=cases, num_workers=2
    )


def test_a_batch_of_odd_size_is_that_of_one_device_over_workers(file_workers):
    """Two and three examples: the steps of both had to have the same size."""
    expected = load(FOLDER / "files_cases.py").odd()

    for found in file_workers.values("odd"):
        for one, two in zip(expected, found, strict=True):
            np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=1e-6)


def test_a_file_of_two_workers_is_refused_before_it_is_written(file_workers):
    """They ended in an error of HDF5, or in a file that was neither's."""
    own = r"in each of 2 worker processes; give each .*\{repl\.worker_id\}.*is_chief"
    patterns = [
        rf"ModelCheckpoint writes .*best\.keras {own}",
        rf"CSVLogger writes .*log\.csv {own}",
        rf"TensorBoard writes .*board {own}",
        r"BackupAndRestore saves in each of 2 .*save_freq=\"epoch\" if repl\.is_chief",
    ]

    for messages, files in file_workers.values("shared"):
        assert len(patterns) == len(messages)
        for pattern, message in zip(patterns, messages, strict=True):
            assert "\n" not in message
            assert re.search(pattern, message)
        assert [] == files


@pytest.mark.full
def test_an_interrupted_training_of_workers_goes_on_as_one_device(tmp_path):
    """What the messages say to write: the chief saves, and all resume from it."""
    alone = load(FOLDER / "files_cases.py").alone(contextlib.nullcontext())

    for outcome in _ran_on_files(tmp_path, "resumed").values("resumed"):
        assert [2, 1] == outcome["epochs"]
        for key in ("weights", "saved"):
            for one, two in zip(alone, outcome[key], strict=True):
                np.testing.assert_allclose(two, one, rtol=TOLERANCE, atol=1e-6)

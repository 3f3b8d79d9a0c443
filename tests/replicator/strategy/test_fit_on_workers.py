"""``fit`` and reductions on two workers with two replicas each."""

import contextlib
from pathlib import Path

import case_cluster
import numpy as np
import pytest
from loading import load

FOLDER = Path(__file__).parent
TOLERANCE = 1e-5  # relative: sums of float32 in another order

pytestmark = pytest.mark.processes


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

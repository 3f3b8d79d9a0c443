"""Programs as libraries publish them give over two workers what they give on a device.

``make test-communities`` runs them; each process reads all data and takes its part.
"""

from pathlib import Path

import case_cluster
import community_cases
import numpy as np
import pytest
from test_communities import ATOL, NEEDS, PROGRAMS, RTOL, installed

# Program -> why it does not run over two workers.
NOT_RUN = {
    "dm_control_policy": "each process acts in a world of its own",
    "keras_tuner_search": "its own distribution gives trials to workers",
    "tf_agents_dqn": "two steps of its loop in a function overlap",
}
NAMES = [name for name in PROGRAMS if name not in NOT_RUN]

pytestmark = [pytest.mark.processes, pytest.mark.full]


@pytest.fixture(scope="module")
def workers(request, tmp_path_factory):
    names = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path
    ]
    return case_cluster.ran(
        "community_cases",
        tmp_path_factory.mktemp("communities"),
        path=Path(__file__).parent,
        cases=[name for name in names if installed(name)],
        num_workers=2,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_program_over_two_workers_gives_what_one_device_gives(workers, name):
    """Losses, metrics, predictions and weights, in both processes."""
    if not installed(name):
        pytest.skip(f"{NEEDS[name]} is not installed: make test-communities has it")
    expected = community_cases.run(name)

    for got in workers.values(name):
        assert len(expected) == len(got)
        for one, other in zip(expected, got, strict=True):
            np.testing.assert_allclose(other, one, rtol=RTOL, atol=ATOL, err_msg=name)

"""What a step costs between the workers of one graph, counted where it is executed."""

import pytest

pytestmark = pytest.mark.processes

# Of a step of ResNet-50, of which 36 are its gradients
# (``tests/replicator/engine/test_plan.py``): the short one has two of these.
MOST_DATA, OF_FULL_SIZE = 42, 36 - 2


@pytest.mark.parametrize("num_replicas", [2, 16])
def test_workers_send_each_other_a_few_tensors_per_step(client, num_replicas):
    """A bucket of gradients there and back, and what the other worker returns as one.

    That is a vector per type of outputs, and one of statistics, whatever the number of
    replicas. Transfers of nothing are at most four per replica, as on one machine.
    """
    found = client.value("executed_graphs")[str(num_replicas)]

    assert found["num_nodes"] > 1000  # it is the step that was counted
    assert 2 < found["num_data"] <= MOST_DATA - OF_FULL_SIZE
    assert found["num_controls"] <= 4 * num_replicas
    assert f"; {found['num_data']} tensors in all" in found["explained"]


def test_each_replica_returns_its_own_outputs_of_any_type(client):
    """Of the other worker, numbers of one type and of few bytes come as one tensor."""
    once, loop = client.value("outputs")

    assert [
        [0.0, 1.0, 2.0, 3.0],
        [[[r], [r + 0.5]] for r in range(4)],
        [10, 11, 12, 13],
        [False, False, True, True],
        ["0", "1", "2", "3"],
        [[], [0], [0, 1], [0, 1, 2]],
        [[[float(r)] * 200] * 200 for r in range(4)],
    ] == once
    assert once == loop

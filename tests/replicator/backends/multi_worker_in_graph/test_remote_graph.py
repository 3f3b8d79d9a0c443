"""What a step costs between the workers of one graph, counted where it is executed."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.processes

# Of a step of ResNet-50, of which 36 are its gradients
# (``tests/replicator/engine/test_plan.py``), 32 more than those of a short one.
MOST_DATA, OF_FULL_SIZE = 42, 32
# Of each further replica of the other worker: losses, and its statistics as one vector.
MOST_BY_REPLICA = 3


@pytest.mark.parametrize("num_replicas", [2, 16])
def test_workers_send_each_other_a_few_tensors_per_step(client, num_replicas):
    """A bucket of gradients there and back, whatever the number of replicas.

    Transfers of nothing are at most four per replica, as on one machine.
    """
    found = client.value("executed_graphs")[str(num_replicas)]

    assert found["num_nodes"] > 1000  # it is the step that was counted
    num_more = MOST_BY_REPLICA * (num_replicas // 2 - 1)
    assert 2 < found["num_data"] <= MOST_DATA - OF_FULL_SIZE + num_more
    assert found["num_controls"] <= 4 * num_replicas

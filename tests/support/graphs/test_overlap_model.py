"""The model of overlap, held to timelines that were drawn by hand."""

import dataclasses

import pytest
from overlap_model import (
    ENDED,
    FREE,
    STARTED,
    Levels,
    Machine,
    OneGraph,
    Reduction,
    simulate,
)

# Four kernels of 1 s; a reduction of 2 bytes takes 0.5 + 2 * 1 / 4 = 1 s on two GPUs.
MACHINE = Machine(
    num_gpus=2, step_sec=4.0, host_sec=0.4, reduction_sec=0.5, bytes_per_sec=4.0
)
WORK = [1, 1, 1, 1]


def reductions(*released_by):
    """Of two bytes each."""
    return [Reduction(num_bytes=2, released_by=kernel) for kernel in released_by]


@pytest.mark.parametrize(
    ("released_by", "rule", "spans"),
    [
        # Both hide: the host asks for them at 0.1 and 0.2, and they queue there.
        ((0, 1), FREE, [(1, 2), (2, 3)]),
        # Planned in another order than they come: NCCL has the order of starts.
        ((1, 0), FREE, [(2, 3), (1, 2)]),
        ((1, 0), STARTED, [(2, 3), (3, 4)]),
        # The host asks for the second one at 2, and all kernels are queued by then.
        ((0, 1), ENDED, [(1, 2), (4, 5)]),
        # The last one hides behind nothing.
        ((0, 3), FREE, [(1, 2), (4, 5)]),
        # One stream: the second waits for the first.
        ((1, 1), FREE, [(2, 3), (3, 4)]),
    ],
)
def test_reductions_are_where_they_were_drawn(released_by, rule, spans):
    """Begin and end of each, in seconds."""
    found = simulate(WORK, reductions(*released_by), MACHINE, rule)

    assert (1, 2, 3, 4) == pytest.approx(found.kernels)
    assert [pytest.approx(span) for span in spans] == list(found.reductions)


def test_efficiency_is_the_share_of_computing():
    """4 of 5 s where the last reduction is alone, and all where everything hides."""
    assert 0.8 == simulate(WORK, reductions(3), MACHINE, FREE).efficiency
    assert 1.0 == simulate(WORK, reductions(0), MACHINE, FREE).efficiency


def test_levels_send_what_leaves_a_node_once():
    """24 bytes on two nodes of two: 3 starts, 24 within at 8/s, 24 across at 4/s."""
    levels = Levels(
        **dataclasses.asdict(MACHINE) | {"num_gpus": 4},
        num_nodes=2,
        near_bytes_per_sec=8.0,
    )

    assert 3 * 0.5 + 24 / 8 + 24 / 4 == levels.reduction(24)


@pytest.mark.parametrize(
    ("reduces_near", "seconds"),
    # Two GPUs of the other node send there and back, 1 s each time; or one does, after
    # a reduction of 24 within and before a broadcast of 12.
    [(False, 2 * (1 + 48 / 4)), (True, 2 * (1 + 24 / 4) + 2 * 0.5 + 36 / 8)],
)
def test_a_graph_of_two_nodes_sends_to_an_owner_and_back(reduces_near, seconds):
    """24 bytes on two nodes of two."""
    graph = OneGraph(
        **dataclasses.asdict(MACHINE) | {"num_gpus": 4},
        num_nodes=2,
        near_bytes_per_sec=8.0,
        transfer_sec=1.0,
        reduces_near=reduces_near,
    )

    assert seconds == graph.reduction(24)


def test_a_ring_sends_the_published_number_of_bytes():
    """Each of n GPUs sends 2 (n - 1) / n of the tensor (Patarasuk and Yuan 2009)."""
    eight = Machine(
        num_gpus=8, step_sec=1.0, host_sec=0.0, reduction_sec=0.0, bytes_per_sec=1.0
    )

    assert 14.0 == eight.reduction(8)

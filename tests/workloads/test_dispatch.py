"""Steps that are queued compute what steps that are waited for compute."""

import pytest
import tensorflow as tf
from small_programs import build as build_small

import replicator
from workloads import catalog


def build(name, backend, num_replicas):
    tf.keras.utils.set_random_seed(1)
    repl = replicator.create(backend, num_replicas=num_replicas)
    return build_small(name, repl, data="digits")


@pytest.mark.parametrize(
    "case",
    [
        ("resnet50", "single", 1),
        pytest.param(("resnet50", "in_graph", 2), marks=pytest.mark.full),
        pytest.param(("sngan", "in_graph", 2), marks=pytest.mark.full),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_losses_can_be_read_after_later_steps_have_started(case):
    """Equal to the last bit; so are the checks, which count examples.

    The full run adds sngan, which keeps its losses by the same code, and two replicas,
    whose losses are kept as those of one.
    """
    queued = build(*case)
    readers = [queued.dispatch() for _ in range(3)]
    losses, of_replicas = [], []
    for read_loss in readers:
        losses.append(read_loss())
        of_replicas.append(queued.losses_of_replicas())
    one_by_one = build(*case)
    expected, expected_of_replicas = [], []
    for _ in range(3):
        expected.append(one_by_one.run())
        expected_of_replicas.append(one_by_one.losses_of_replicas())

    assert expected == losses
    assert 3 == len(set(losses))
    assert expected_of_replicas == of_replicas
    assert [(c.name, c.is_passed) for c in queued.sanity()] == [
        (c.name, True) for c in one_by_one.sanity()
    ]


def test_a_program_that_cannot_queue_says_why():
    """The planner refuses; a step has ended when it is dispatched."""
    reasons = {name: info.syncs_because for name, info in catalog.WORKLOADS.items()}

    assert {"resnet50": "", "sngan": ""}.items() <= reasons.items()
    assert reasons["d4pg"]

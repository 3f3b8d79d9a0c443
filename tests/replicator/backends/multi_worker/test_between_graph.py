"""multi_worker in real clusters of processes: values, agreement, misuse."""

import re

import pytest
import tensorflow as tf

pytestmark = pytest.mark.processes


def check_messages(expected, found):
    wrong = [name for name in expected if not re.search(expected[name], found[name])]
    assert [] == [found[name] for name in wrong]


def test_accumulated_gradients_travel_when_they_are_used(two_workers):
    """Of eight calls two update, and two collectives run."""
    assert [2, 2] == two_workers.values("number of collectives")


def test_an_uneven_epoch_on_workers_is_that_of_one_device(two_workers, check_epoch):
    """The second worker has no example in its last step; the checkpoint continues."""
    check_epoch(two_workers.values("uneven epoch"))


def test_workers_of_a_control_do_not_wait_for_each_other(two_workers):
    """One runs one step, the other three; each trains alone, and is not compared."""
    first, second = two_workers.values("without communication")

    assert first["losses"] == pytest.approx([2.0])
    assert second["losses"] == pytest.approx([4.0, 3.2, 2.4])
    for worker in (first, second):
        assert "Nothing is communicated" in worker["explained"]
        assert "assert_in_sync() does not work with" in worker["message"]


def test_every_type_crosses(two_workers):
    """As NumPy and TensorFlow compute it in one process; empty tensors are no danger.

    TensorFlow's own collectives crash on some of them.
    """
    assert [[], []] == two_workers.values("every type")
    assert [[[2, 0, 2], [0, 2], [2, 0]]] * 2 == two_workers.values("empty tensors")


def test_shapes_that_the_trace_does_not_know_cross(two_workers):
    """Workers compare them in every run, then communicate; the last batch is short."""
    batches = [[1, 2, 3], [4, 5, 6], [7, 8], [1, 2, 3]]
    expected = [[[b, b], [2 * x for x in b], b] for b in batches]

    assert [expected] * 2 == two_workers.values("unknown shapes")


def test_local_and_random_state_is_that_of_the_job(two_workers):
    """Outside, local variables read as mean or sum over all replicas."""
    results = two_workers.values("state")
    first, second = results
    draws = [*first["draws"], *second["draws"]]

    assert [1.5, 3] == first["outside"] == second["outside"]
    assert ([11.0], [12.0]) == (first["seen"], second["seen"])
    assert [11.5, 6] == first["after"] == second["after"]
    assert 47104.0 == first["half"] == second["half"]  # whose sum is infinite
    assert len(draws) == len(set(draws))
    assert first["generator"] == second["generator"]


def test_compressed_sums_have_the_same_bits_everywhere(two_workers):
    """Rounded to bfloat16 on the way."""
    values = tf.constant([1.001, 2.001], tf.float32)
    expected = float(tf.reduce_sum(tf.cast(values / 2, tf.bfloat16)))

    assert [[expected]] * 2 == two_workers.values("compressed")


def test_bytes_of_any_length_are_exchanged(two_workers):
    """What checkpoints need; beyond the usual limit of a message."""
    assert [[0, 5_000_000]] * 2 == two_workers.values("exchange")


def test_the_plan_shows_cross_worker_communication(two_workers):
    text = two_workers.values("plans")[0]

    for line in (
        r"#0 all_reduce\(sum\): 3 tensors, 2400008 bytes .* 2 transfers .* 1 fused;",
        r"fused; then reduce over 2 workers \(ring\)",
        r"#1 all_gather: .*; then gather over 2 workers \(ring\)",
        r"#2 broadcast\(0\): .*; then broadcast over 2 workers \(tree\)",
    ):
        assert re.search(line, text), text


DISAGREEMENTS = {
    "kind": (
        r"DisagreementError: .* different programs at the first run of step "
        r"'.*other_kind': call is 'all_reduce\(sum\)' on worker 0 \(local.*\), "
        r"but 'all_reduce\(max\)' on worker 1 \(localhost:\d+\); every work"
    ),
    "number": r"the number of collectives is 2 on worker 0 .*, but 1 on worker 1",
    "shape": r"#0 of tensors is 'float32\(2,\)' on worker 0 .*'float32\(3,\)'",
    "sizes": r"DisagreementError: batches of worker 1 can have any number of examples",
    "num_steps": r"num_steps is 2 on worker 0 \(.*\), but 3 on worker 1",
}


def test_different_programs_are_refused_on_all_workers(two_workers):
    """Also if one fails to trace: it has its own error, and both continue."""
    first, second = two_workers.values("disagreements")

    check_messages(DISAGREEMENTS, first)
    check_messages(DISAGREEMENTS, second)
    assert re.search(
        r"DisagreementError: .*failure is None on worker 0 .*KeyError: 'only here'",
        first["failure"],
    ), first["failure"]
    assert second["failure"].startswith("KeyError")
    assert 2.0 == first["after"] == second["after"]


def test_drift_between_workers_is_found(two_workers):
    """assert_in_sync() compares digests over workers; all of them raise."""
    for message in two_workers.values("drift"):
        assert re.search(
            r"1 mirrored variables differ between worker 0 .* and worker 1 .*: weight",
            message,
        ), message


MISUSE = {
    "one pipeline": r"InputModeError: InputReplicationMode.SINGLE does not work with b",
    "strings": r"CollectiveTypeError: all_gather of string cannot be sent between",
    "uneven replicas": (
        r"DeviceError: num_replicas 3 of the whole job is not divisible by its 2 "
    ),
    "pattern": r"ValueError: pattern 'sideways' is not one of 'between_graph', 'in",
    "inputs": r"OtherReplicatorError: the input iterator .*InGraphReplicator, num_repl",
    "values": r"OtherReplicatorError: .*InGraphReplicator, num_replicas=1",
}


def test_misuse_is_explained(two_workers):
    for found in two_workers.values("refused"):
        check_messages(MISUSE, found)

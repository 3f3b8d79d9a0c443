"""multi_worker in real clusters of processes, which check what they find.

What every backend promises is asked by the conformance suite; here is what only worker
processes do.
"""

import collections
import functools
import json
import os
import re
import tempfile
from pathlib import Path
from unittest import mock

import case_cluster
import graphs
import keras
import linked_collectives
import numpy as np
import pytest
import tensorflow as tf
import tiny_models
from case_cluster import check, check_close, check_message, check_messages, gathered
from tiny_models import Training, share

import replicator
from replicator.core import devices

TIMEOUT_SEC = 60.0
# Two replicas of each worker.
MIRRORED = {
    "devices": ["CPU:0", "CPU:1"],
    "variable_placement": "mirrored",
    "timeout_sec": TIMEOUT_SEC,
}


def accumulated_gradients_travel_when_they_are_used(repl):
    with repl.context():
        weight = tf.Variable(tf.ones([300]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1), accumulation_steps=4)

    def step(x):
        optimizer.apply_gradients([(weight * x, weight)])

    x = share(repl, [np.float32(r) for r in range(repl.num_replicas)])
    # The last call communicates nothing: what it began might end after the profile.
    for _ in range(5):
        repl.run(step, x)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(8):
            repl.run(step, x)
        tf.profiler.experimental.stop()
        check(2, _counted_ops(Path(folder))["CollectiveReduceV2"])


def _counted_ops(folder):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.rglob("*.xplane.pb")
    counts = collections.Counter()
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                counts[name.rpartition(":")[2]] += 1
    return counts


TYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)


def _of_type(name, replica_id):
    values = (np.arange(6, dtype=np.uint64).reshape(2, 3) * (replica_id + 3)) % 7
    if name == "uint64":
        values += np.uint64(2**63)  # must not be taken for negative
    return tf.cast(values, tf.as_dtype(name))


def _ops_of(dtype):
    if dtype == tf.bool:
        return {"min": tf.reduce_all, "max": tf.reduce_any}
    if dtype.is_complex:
        return {"sum": tf.reduce_sum}
    return {"sum": tf.reduce_sum, "min": tf.reduce_min, "max": tf.reduce_max}


def every_type_crosses(repl):
    """As TensorFlow computes it in one process, whose own collectives crash on some."""
    values = {name: [_of_type(name, r) for r in range(2)] for name in TYPES}
    mine = {name: share(repl, of_each) for name, of_each in values.items()}

    def step(given):
        return {
            name: {
                "gather": replicator.all_gather(x),
                "broadcast": replicator.broadcast(x, 1),
                **{op: replicator.all_reduce(x, op) for op in _ops_of(x.dtype)},
            }
            for name, x in given.items()
        }

    outputs, wrong = repl.run(step, mine), []
    for name, of_each in values.items():
        stacked = tf.stack(of_each)
        expected = {"gather": stacked, "broadcast": of_each[1]}
        for op, reduce in _ops_of(stacked.dtype).items():
            expected[op] = reduce(stacked, axis=0)
        check(expected.keys(), outputs[name].keys())
        for op, value in expected.items():
            got = outputs[name][op][-1]
            if got.dtype != value.dtype or not np.array_equal(got, value):
                wrong.append([name, op])
    check([], wrong)


def shapes_that_the_trace_does_not_know_cross(repl):
    """Workers compare them in every run, then communicate; the last batch is short."""
    dataset = tf.data.Dataset.range(1, 9).batch(3).repeat()
    inputs = repl.make_input_iterator(lambda ctx: dataset)

    def step(x):
        return (
            replicator.all_gather(x),
            replicator.all_sum(x),
            replicator.broadcast(x, repl.num_replicas - 1),
        )

    for batch in ([1, 2, 3], [4, 5, 6], [7, 8], [1, 2, 3]):
        found = [o[0].numpy().tolist() for o in repl.run(step, inputs)]
        check([[batch, batch], [2 * x for x in batch], batch], found)


def local_and_random_state_is_that_of_the_job(repl):
    """Outside, local variables read as mean or sum over all replicas."""

    def local_variable(value, **options):
        return tf.Variable(
            value,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            **options,
        )

    with repl.context():
        local, half = local_variable(0.0), local_variable(49152.0, dtype=tf.float16)
        count = local_variable(0, aggregation=tf.VariableAggregation.SUM)
        random = tf.random.Generator.from_seed(3)

    def step():
        half.assign(half - 1024.0)
        replica_id = replicator.get_replica_context().replica_id
        local.assign_add(tf.cast(replica_id + 1, tf.float32))
        count.assign_add(replica_id + 1)
        return random.normal([]), local.read_value()

    first, _ = repl.run(step)
    check([1.5, 3], [float(local), int(count)])
    local.assign(10.0)
    second, seen = repl.run(step)
    check([11.0 + repl.worker_id], [float(v) for v in seen])
    check([11.5, 6], [float(local), int(count)])
    check(47104.0, float(half))  # whose sum is infinite
    drawn = gathered(repl, [float(v) for v in [*first.values, *second.values]])
    check(4, len({number for of_worker in drawn for number in of_worker}))
    check(
        1, len({str(state) for state in gathered(repl, random.state.numpy().tolist())})
    )


def compressed_sums_have_the_same_bits_everywhere(repl):
    """Rounded to bfloat16 on the way."""
    values = share(repl, [np.float32(1.001 + r) for r in range(repl.num_replicas)])

    def step(x):
        return replicator.all_reduce(x, "mean", compression="bfloat16")

    halves = tf.cast(tf.constant([1.001, 2.001], tf.float32) / 2, tf.bfloat16)
    check([float(tf.reduce_sum(halves))], [float(v) for v in repl.run(step, values)])


def bytes_of_any_length_are_exchanged(repl):
    payload = bytes([repl.worker_id]) * (5_000_000 * repl.worker_id)
    check([0, 5_000_000], [len(part) for part in repl.gather_bytes(payload)])


def the_plan_shows_cross_worker_communication(repl):
    four = replicator.create("multi_worker", num_replicas=4, **MIRRORED)
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]

    def all_kinds(x):
        return (
            replicator.all_sum([x[0], x[1], tf.ones([600_000])]),
            replicator.all_sum(x),
            replicator.all_gather(x[0]),
            replicator.broadcast(x[0], 0),
            replicator.reduce_scatter(x),
            replicator.all_to_all(x),
            replicator.permute(x, ring),
            replicator.permute(x, ring[:1]),
        )

    four.run(all_kinds, share(four, np.zeros([4, 16], np.float32)))
    text = four.explain().partition("all_kinds")[2].partition("\n\n")[0]
    for line in (
        r"#0 all_reduce\(sum\): 3 tensors, 2400008 bytes .* 2 transfers .* 1 fused;",
        r"fused; then reduce over 2 workers \(ring\)",
        r"#1 all_reduce\(sum\): .*; then reduce over .* \(ring\), 128 bytes in all",
        r"#2 all_gather: .*; then gather over 2 workers \(ring\)",
        r"#3 broadcast\(0\): .*; then broadcast over 2 workers \(tree\)",
        r"#4 reduce_scatter\(sum\): .*; then reduce over .*, 128 bytes in all",
        r"#5 all_to_all: .*; then gather over .*, 256 bytes in all",
        r"#6 permute\(.*; then gather over .*, 256 bytes in all",
        r"#7 permute\(.*; nothing over 2 workers$",
    ):
        assert re.search(line, text, re.MULTILINE), text


def workers_of_a_control_do_not_wait_for_each_other(repl):
    control = replicator.create(
        "multi_worker",
        num_replicas=repl.num_replicas,
        timeout_sec=TIMEOUT_SEC,
        without_communication=True,
    )
    with control.context():
        weight = tf.Variable([1.0, 1.0])
        statistic = tf.Variable(0.0, trainable=False)
        optimizer = control.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        loss = tf.reduce_sum(weight * x)
        statistic.assign(loss)
        optimizer.apply_gradients([(tf.fill([2], x), weight)])
        return loss

    x = share(control, [np.float32(1 + r) for r in range(control.num_replicas)])
    expected = ([2.0], [4.0, 3.2, 2.4])[control.worker_id]
    losses = [float(control.reduce("mean", control.run(step, x))) for _ in expected]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert "Nothing is communicated" in control.explain()
    check_message(r"assert_in_sync\(\) does not work with", control.assert_in_sync)


def different_programs_are_refused_on_all_workers(repl):
    is_first = repl.worker_id == 0
    one = share(repl, [np.float32(1)] * 8)

    def sums(x):
        return replicator.all_sum(x)

    def other_kind(x):
        return replicator.all_sum(x) if is_first else replicator.all_max(x)

    def other_number(x):
        return [replicator.all_sum(x) for _ in range(2 if is_first else 1)]

    def one_fails(x):
        if not is_first:
            raise KeyError("only here")
        return replicator.all_sum(x)

    def no_input():
        return replicator.all_sum(1.0)

    data = tf.data.Dataset.from_tensors(1.0).repeat(4)
    mixed = repl.make_input_iterator(lambda _: data.batch(2, drop_remainder=is_first))
    shapes = share(repl, [np.ones([2 if is_first else 3], np.float32)] * 8)
    wrong = {
        r"DisagreementError: batches of worker 1 can have any number of examples": (
            lambda: repl.run(lambda x: replicator.all_sum(x[0]), mixed)
        ),
        r"DisagreementError: .* different programs at the first run of step "
        r"'.*other_kind': call is 'all_reduce\(sum\)' on worker 0 \(local.*\), "
        r"but 'all_reduce\(max\)' on worker 1 \(localhost:\d+\); every work": (
            lambda: repl.run(other_kind, one)
        ),
        r"the number of collectives is 2 on worker 0 .*, but 1 on worker 1": (
            lambda: repl.run(other_number, one)
        ),
        r"#0 of tensors is 'float32\(2,\)' on worker 0 .*'float32\(3,\)'": (
            lambda: repl.run(sums, shapes)
        ),
        r"num_steps is 2 on worker 0 \(.*\), but 3 on worker 1": (
            lambda: repl.run(no_input, num_steps=2 if is_first else 3)
        ),
        r"DisagreementError: .*failure is None on worker 0 .*KeyError: 'only here'"
        if is_first
        else r"^KeyError": lambda: repl.run(one_fails, one),
    }
    check_messages(wrong)
    check(2.0, float(repl.run(sums, one)[0]))


def drift_between_workers_is_found(repl):
    with repl.context():
        weight = tf.Variable(1.0, name="weight")

    def step():
        return weight + 1.0

    repl.run(step)
    repl.assert_in_sync()
    weight.assign(1.0 + repl.worker_id)
    check_message(
        r"1 mirrored variables differ between worker 0 .* and worker 1 .*: weight",
        repl.assert_in_sync,
    )
    weight.assign(1.0)


def misuse_is_explained(repl):
    def of_another():
        other = replicator.create("in_graph", num_replicas=1)
        return other.make_input_iterator(lambda _: tf.data.Dataset.from_tensors(1.0))

    single = replicator.InputReplicationMode.SINGLE
    calls = {
        r"InputModeError: InputReplicationMode.SINGLE does not work with b": (
            lambda: repl.make_input_iterator(lambda ctx: None, single)
        ),
        r"CollectiveTypeError: all_gather of string cannot be sent between": (
            lambda: repl.run(replicator.all_gather, share(repl, ["text"] * 8))
        ),
        r"DeviceError: num_replicas 3 of the whole job is not divisible by its 2 ": (
            lambda: replicator.create("multi_worker", num_replicas=3)
        ),
        r"ValueError: pattern 'sideways' is not one of 'between_graph', 'in": (
            lambda: replicator.MultiWorkerReplicator(num_replicas=2, pattern="sideways")
        ),
        r"OtherReplicatorError: the input iterator .*InGraphReplicator, num_repl": (
            lambda: repl.run(replicator.all_sum, of_another())
        ),
        r"OtherReplicatorError: .*InGraphReplicator, num_replicas=1": (
            lambda: repl.run(replicator.all_sum, next(of_another()))
        ),
    }
    check_messages(calls)


NUM_STEPS = 20
HALF = NUM_STEPS // 2


def train(repl, optimizer="adam", **options):
    training = Training(repl, "deep", optimizer, **options)
    training.run_between(0, NUM_STEPS)
    return training.weights()


@functools.cache
def _alone(optimizer):
    return train(replicator.create("single"), optimizer)


def check_weights(repl, weights, optimizer="adam"):
    """Bit for bit on all workers, and to rounding those of one device.

    After that, new layers have other names on the chief than on the other worker.
    """
    check([weights] * 2, gathered(repl, weights))
    if repl.is_chief:
        check_close(_alone(optimizer), weights)


def check_shares(repl, variables):
    """Each process has its share, together there is all of it."""
    here = gathered(repl, sum(variable.numpy().nbytes for variable in variables))
    size = sum(variable.shape.num_elements() * 4 for variable in variables)
    check(size, sum(here))
    assert max(here) <= 0.6 * size, here
    return here


def make_own():
    """Its plan has no trainings of other cases."""
    return replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)


def shared_folder(repl):
    return Path(gathered(repl, tempfile.mkdtemp())[0])


def a_sharded_update_is_the_unsharded_one(repl):
    whole, sharded = (
        train(repl, "clipped adamw", sharded_update=is_sharded)
        for is_sharded in (False, True)
    )
    check(whole, sharded)
    check_weights(repl, sharded, "clipped adamw")


SKIPPED = {"accumulation_steps": 2, "loss_scale": "dynamic"}
UNFINISHED = 7  # calls, of which the last one has not been followed by an update


def sharded_gradients_are_dropped_by_those_who_do_not_own_them(_):
    """Buckets of one owner each; weights of one device, also if updates are skipped.

    And if it continues where both workers had a part of unfinished sums.
    """
    repl = make_own()
    folder = shared_folder(repl)
    skipping = Training(repl, "deep", sharded_update="gradients", **SKIPPED)
    skipping.run_between(0, UNFINISHED)
    skipping.make_manager(folder).save()
    skipping.run_between(UNFINISHED, NUM_STEPS)
    plans = [plan for _, p in repl._programs.items() for plan in p.plans]
    owners = [
        [plan.collective.shapes[p].as_list() for p in bucket.positions]
        for plan in plans
        for bucket in plan.buckets
        if bucket.is_for_owner
    ]
    check([owners] * 2, gathered(repl, owners))
    check(6, sum(map(len, owners[:2])))
    # The sums of calls are on their owners as well.
    sums = [v for v in skipping.slots() if "accumulated_grad" in v.name]
    size = sum(check_shares(repl, sums))
    # A ring of two sends each sum twice, and the owner each new value once.
    text = f"moves {2 * size} bytes by reductions and {size} bytes of weights between w"
    assert text in repl.explain()
    clipped = train(repl, "clipped adamw", sharded_update="gradients")
    check_weights(repl, clipped, "clipped adamw")
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep", **SKIPPED)
        check(UNFINISHED // 2, one.make_manager(folder).restore().step)
        one.run_between(UNFINISHED, NUM_STEPS)
        check_close(one.weights(), skipping.weights())


def unfinished_sums_are_saved_as_their_mean(repl):
    """Over all replicas of the job; where there are none, nobody communicates."""
    four = replicator.create("multi_worker", num_replicas=4, **MIRRORED)
    with four.context():
        weight = tf.Variable([0.0, 0.0])
        statistic = tf.Variable([0.0, 0.0], trainable=False)
        optimizer = four.wrap_optimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)

    def step(x):
        statistic.assign_add([x, 5.0])
        optimizer.apply_gradients([(tf.stack([x, 5.0]), weight)])

    x = share(four, [np.float32(2 * r) for r in range(4)])
    four.run(step, x)
    if repl.is_chief:  # alone
        with four.consolidated_state([weight, statistic]):
            pass
    state = {"weight": weight, "optimizer": optimizer, "statistic": statistic}
    four.make_checkpoint_manager(shared_folder(repl), **state).save()
    (total,) = [v for v in optimizer.variables if "accumulated_g" in v.name]
    check([3.0, 5.0], total.numpy().tolist())
    (local,) = four.local_state()
    first = 4.0 * repl.worker_id
    check([[first, 5.0], [first + 2, 5.0]], [each.tolist() for each in local.values])
    four.run(step, x)
    check([-3.0, -5.0], weight.numpy().tolist())


RING, CPU_GROUP, GPU_GROUP = "ring", 1, (1 << 24) - 1
DTYPES = (tf.float32, tf.bfloat16, tf.int32)


def statistics_stay_on_gpus_where_nccl_takes_them(repl):
    """Not two parts of one GPU, nor types that it does not reduce."""
    found = {
        "CPUs": _reductions_of_statistics(repl),
        "GPUs": _reductions_of_statistics(graphs.gpus_of_workers(repl, 1)),
        "parts": _reductions_of_statistics(
            graphs.gpus_of_workers(repl, 2, gpus_per_card=2)
        ),
    }
    in_a_ring = dict.fromkeys(DTYPES, ("CPU", RING, CPU_GROUP))
    by_nccl = {tf.float32: ("GPU", "nccl", GPU_GROUP)}
    check({"CPUs": in_a_ring, "GPUs": in_a_ring | by_nccl, "parts": in_a_ring}, found)


def _reductions_of_statistics(repl):
    """By type, where workers sum statistics after a step: device, way and group."""
    on_read = tf.VariableSynchronization.ON_READ
    total = tf.VariableAggregation.SUM
    with repl.context(), tf.device("CPU:0"):
        statistics = [
            tf.Variable(
                tf.zeros([2], dtype),
                trainable=False,
                synchronization=on_read,
                aggregation=total,
            )
            for dtype in DTYPES
        ]

    def step(x):
        for statistic in statistics:
            statistic.assign_add(tf.fill([2], tf.cast(x, statistic.dtype)))

    found = {}
    graph = graphs.emitted(repl, step, tf.TensorSpec([]))
    functions = graphs.called_by(graph.node)
    for nodes in (graph.node, *(function.node_def for function in functions)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op == "CollectiveReduceV2":
                group = by_name[node.input[2].partition(":")[0]].attr["value"].tensor
                found[tf.as_dtype(node.attr["T"].type)] = (
                    tf.DeviceSpec.from_string(node.device).device_type,
                    node.attr["communication_hint"].s.decode(),
                    tf.make_ndarray(group).item(),
                )
    return found


def updates_of_several_owners_wait_for_each_other(repl):
    """None is sent together with what it has to wait for; steps in a loop too."""
    results = []
    for is_sharded in (False, True):
        with repl.context():
            weights = [tf.Variable([1.0, float(n)]) for n in range(3)]
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.5, momentum=0.5), sharded_update=is_sharded
            )

        def step(weights=weights, optimizer=optimizer):
            optimizer.apply_gradients([(w * 0.5, w) for w in weights])
            first, second, third = weights
            second.assign_add(first)
            third.assign_add(second)
            return first + second + third

        seen = [repl.run(step, num_steps=n)[0].numpy().tolist() for n in (1, 2)]
        repl.assert_in_sync()
        results.append([seen, [w.numpy().tolist() for w in weights]])
    check(*results)


def _sharded(repl, *tensors):
    with repl.context():
        weights = [tf.Variable(tensor) for tensor in tensors]
        optimizer = repl.wrap_optimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), sharded_update=True
        )
    optimizer.build(weights)
    return weights, optimizer


def updates_come_before_the_first_collective_that_depends_on_them(repl):
    """However far away; at the end where there is none."""
    (weight, other), optimizer = _sharded(repl, [1.0, 2.0], [3.0, 4.0])

    def step(x, calls):
        optimizer.apply_gradients([(x, weight)])
        read = weight * x
        other.assign_add(weight)
        values = {"free": x, "soon": read, "late": -read}
        return [replicator.all_sum([values[n] for n in names]) for names in calls]

    for calls, expected in {
        (("free",), ("soon",), ("late",)): "0 1 shares 2 3 shares",
        (("soon",), ("soon", "free"), ("late",)): "0 shares 1 2 3 shares",
        (("free",),): "0 1 shares shares",
        (): "0 shares shares",
    }.items():
        function = graphs.linked(
            repl, functools.partial(step, calls=calls), tf.TensorSpec([2])
        )
        names = [n.name for n in function.node_def if n.op.startswith("Collective")]
        parts = re.findall(r"/(shares_\d+|collective_\d+)", " ".join(names))
        order = [
            "shares" if part.startswith("shares") else part.removeprefix("collective_")
            for part in dict.fromkeys(parts)
        ]
        check((calls, expected), (calls, " ".join(order)))


def _received(repl, step):
    """Types and elements of the updates that this worker receives, in order."""
    function = graphs.linked(repl, step, tf.TensorSpec([]))
    nodes = {node.name: node for node in function.node_def}
    found = []
    for node in function.node_def:
        if node.op == "CollectiveBcastRecvV2":
            shape = nodes[node.input[3].partition(":")[0]].attr["value"].tensor
            size = int(np.prod(tf.make_ndarray(shape)))
            found.append((tf.as_dtype(node.attr["T"].type).name, size))
    return found


def updates_of_one_level_owner_and_type_travel_together(repl):
    shapes = [
        ("float64", 8),
        ("float64", 7),
        *(("float32", n) for n in (12, 11, 10, 9)),
    ]
    weights, optimizer = _sharded(repl, *(tf.zeros([n], dtype) for dtype, n in shapes))

    def step(x):
        grads = [tf.cast(x, w.dtype) * tf.ones_like(w) for w in weights]
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        weights[5].assign_add(weights[3][:9])
        return x

    received = gathered(repl, _received(repl, step))
    # Owners, by bytes: 8 and 11 and 9 elements; 7 and 12 and 10.
    check([["float64", 7], ["float32", 12 + 10]], sorted(received[0], reverse=True))
    check(
        [["float64", 8], ["float32", 11 + 9], ["float32", 9]],
        sorted(received[1], reverse=True),
    )


LIMIT = 2 * 1024 * 1024 // 4  # numbers of float32


def updates_share_a_bucket_up_to_its_limit(repl):
    for sizes, expected in (
        ([LIMIT - 1, 1], [LIMIT]),  # exactly full
        ([LIMIT - 1, 2], [LIMIT - 1, 2]),  # one number more
        ([LIMIT + 1, 1, 1], [LIMIT + 1, 2]),  # larger alone
    ):
        # The first is the one worker's, and all others the other's.
        weights, optimizer = _sharded(
            repl, *map(tf.zeros, [[LIMIT + 99], *([n] for n in sizes)])
        )

        def step(x, weights=weights, optimizer=optimizer):
            grads = [x * tf.ones_like(w) for w in weights]
            optimizer.apply_gradients(zip(grads, weights, strict=True))
            return x

        of_first, of_second = gathered(repl, _received(repl, step))
        check(sorted(expected), sorted(size for _, size in of_first))
        check([LIMIT + 99], [size for _, size in of_second])


def state_that_others_use_is_refused(repl):
    """Where an owner would need that of another, or all would, or each another row."""
    (one, _), optimizer = _sharded(repl, [1.0, 2.0], [3.0, 4.0])
    _, slot = [slot.value for slot in optimizer.wrapped.momentums]

    def of_another_owner():
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=one.handle, accum=slot.handle, lr=0.1, grad=[1.0, 1.0], momentum=0.9
        )

    def rows():
        return tf.gather(slot, [replicator.get_replica_context().replica_id])

    wrong = {
        "ResourceApplyKerasMomentum": of_another_owner,
        "ReadVariableOp": lambda: slot + 1.0,
        "ResourceGather": rows,
    }
    said = (
        "^OptimizerOptionError: sharded_update keeps '.*momentum.*' on worker 1 only, "
    )
    for op, step in wrong.items():
        check_message(
            rf"{said}but the step uses it \(in {op}\) on others",
            functools.partial(repl.run, step),
        )


def sums_of_owners_on_gpus_share_a_bucket(repl):
    texts = [
        linked_collectives.plan_of_updates(graphs.gpus_of_workers(repl, 2), level)[:4]
        for level in (False, True)
    ]
    check(*texts)
    assert "algorithm nccl, 1 transfers of which 1 fused" in texts[0][2], texts


def two_replicas_per_worker_have_copies_each(_):
    four = replicator.create("multi_worker", num_replicas=4, **MIRRORED)
    check_weights(four, train(four, sharded_update=True))
    other = f"worker {1 - four.worker_id}, device 0, "
    for owner in ("device:CPU:0 ", "device:CPU:1 ", other):
        assert re.search(rf"{owner}updates \d variables", four.explain())


def a_checkpoint_of_two_workers_continues_with_one(_):
    """The chief writes all state; after that each worker has its share again."""
    repl = make_own()
    folder = shared_folder(repl)
    training = Training(repl, "deep", sharded_update=True)
    training.run_between(0, HALF)
    training.make_manager(folder).save()
    of_chief, _ = check_shares(repl, training.slots())
    training.run_between(HALF, NUM_STEPS)
    assert f"keeps {of_chief} bytes of optimizer state" in repl.explain()
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep")
        check(HALF, one.make_manager(folder).restore().step)
        one.run_between(HALF, NUM_STEPS)
        check_close(one.weights(), training.weights())


def a_checkpoint_of_one_replica_continues_with_two_workers(repl):
    folder = shared_folder(repl)
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep")
        one.run_between(0, HALF)
        one.make_manager(folder).save()
    repl.gather_bytes(b"")  # there is a checkpoint now
    training = Training(repl, "deep", sharded_update=True)
    training.make_manager(folder).restore()
    check_shares(repl, training.slots())
    training.run_between(HALF, NUM_STEPS)
    check_weights(repl, training.weights())


def a_commit_on_each_host_has_the_state_of_all_workers(repl):
    """After it each worker has its share again, and after a restore."""
    folder = shared_folder(repl)
    job = {
        "disk": f"{folder}/disk",
        "disk_every": 10,
        "is_first_of_host": True,
        "memory": f"{folder}/memory-{repl.worker_id}",
        "num_hosts": 2,
        "start": 1,
        "stop_file": f"{folder}/stop",
    }

    def begin():
        training = Training(repl, "deep", sharded_update=True)
        with mock.patch.dict(os.environ, REPLICATOR_ELASTIC=json.dumps(job)):
            state = replicator.ElasticState(
                repl, model=training.model, optimizer=training.optimizer
            )
        return training, state

    before, state = begin()
    before.run_between(0, HALF)
    state.step = HALF
    state.commit()
    check_shares(repl, before.slots())
    after, state = begin()
    check(HALF, state.step)
    check_shares(repl, after.slots())
    after.run_between(HALF, NUM_STEPS)
    check_weights(repl, after.weights())


def what_cannot_be_shared_out_is_refused(repl):
    def make(**options):
        return Training(repl, "deep", **{"sharded_update": True, **options})

    def in_a_branch():
        with repl.context():
            weights = [tf.Variable([1.0]), tf.Variable([1.0])]
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
                sharded_update=True,
            )
        repl.run(lambda: optimizer.apply_gradients([(w * 1.0, w) for w in weights]))

    wrong = {
        r"OptimizerOptionError: .* with MultiWorkerBetweenGraphReplicator: one ": (
            lambda: make(accumulation_steps=2)
        ),
        r"OptimizerOptionError: global_clipnorm=1.0 does not work with .*: no wo": (
            lambda: make(
                sharded_update="gradients", accumulation_steps=2, global_clipnorm=1.0
            )
        ),
        r"sharded_update='parameters' does not work with .*: every worker keeps": (
            lambda: make(sharded_update="parameters")
        ),
        r"OptimizerOptionError: .*one \w*If node of the step uses the": in_a_branch,
        r"OptimizerOptionError: .*sharded_update=True keeps .*_manager": (
            lambda: make().optimizer.save_own_variables({})
        ),
    }
    check_messages(wrong)


# Of which what a worker finds is compared with other processes.
EPOCH = "uneven epoch"
CASES = {
    function.__name__: function
    for function in (
        every_type_crosses,
        shapes_that_the_trace_does_not_know_cross,
        local_and_random_state_is_that_of_the_job,
        compressed_sums_have_the_same_bits_everywhere,
        bytes_of_any_length_are_exchanged,
        the_plan_shows_cross_worker_communication,
        different_programs_are_refused_on_all_workers,
        drift_between_workers_is_found,
        misuse_is_explained,
        accumulated_gradients_travel_when_they_are_used,
        workers_of_a_control_do_not_wait_for_each_other,
        a_sharded_update_is_the_unsharded_one,
        sharded_gradients_are_dropped_by_those_who_do_not_own_them,
        unfinished_sums_are_saved_as_their_mean,
        statistics_stay_on_gpus_where_nccl_takes_them,
        updates_of_several_owners_wait_for_each_other,
        updates_come_before_the_first_collective_that_depends_on_them,
        updates_of_one_level_owner_and_type_travel_together,
        updates_share_a_bucket_up_to_its_limit,
        state_that_others_use_is_refused,
        sums_of_owners_on_gpus_share_a_bucket,
        two_replicas_per_worker_have_copies_each,
        a_checkpoint_of_two_workers_continues_with_one,
        a_checkpoint_of_one_replica_continues_with_two_workers,
        a_commit_on_each_host_has_the_state_of_all_workers,
        what_cannot_be_shared_out_is_refused,
    )
} | {EPOCH: tiny_models.run_uneven_epoch, **linked_collectives.OF_TWO_WORKERS}


def set_up(_folder):
    devices.split_cpu(2)
    return (replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC),)


pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    path = Path(__file__).parent
    return case_cluster.ran("test_between_graph", folder, path=path, num_workers=2)


@pytest.mark.parametrize("case", [c for c in CASES if " " not in c])
def test_two_workers(two_workers, case):
    assert [None, None] == two_workers.values(case)


def test_an_uneven_epoch_on_workers_is_that_of_one_device(two_workers):
    """The second worker has no example in its last step; the checkpoint continues."""
    tiny_models.check_uneven_epoch(two_workers.values(EPOCH))

"""Input pipelines: what fits together, the last step, batches of steps that failed."""

import contextlib
import os

import case_cluster
import fork_server
import programs
import pytest
import tensorflow as tf
from case_cluster import check_message, check_messages

import replicator
from replicator import InputReplicationMode
from replicator._tf import compat as _tf_compat

PER_REPLICA = InputReplicationMode.PER_REPLICA


def test_a_dimension_that_differs_between_pipelines_is_unknown(in_graph):
    inputs = in_graph.make_input_iterator(
        lambda ctx: tf.data.Dataset.from_tensors(
            tf.ones([2 + ctx.input_pipeline_id, 4])
        ),
        PER_REPLICA,
    )

    out = in_graph.run(tf.reduce_sum, inputs)

    assert [None, 4] == inputs.element_spec.shape.as_list()
    assert [8.0, 12.0] == [float(v) for v in out]


def test_pipelines_of_different_elements_are_refused(in_graph):
    def make(*elements):
        return in_graph.make_input_iterator(
            lambda ctx: tf.data.Dataset.from_tensors(elements[ctx.input_pipeline_id]),
            PER_REPLICA,
        )

    check_messages(
        {
            "^ValueError: .*pipelines 0 and 1 yield different structures:.*same": (
                lambda: make((1, 1), 1)
            ),
            # A common type would convert unnoticed.
            "^ValueError: .*pipelines 0 and 1 yield different types:.*same types": (
                lambda: make(1.0, 1)
            ),
        }
    )


@pytest.mark.parametrize(
    ("global_batch_size", "num_replicas", "hint"),
    [(7, 2, "6 or 8"), (7, 4, "4 or 8"), (3, 4, "4 or 8"), (0, 2, "2 or 4")],
)
def test_a_global_batch_that_does_not_divide_is_refused(
    global_batch_size, num_replicas, hint
):
    ctx = replicator.InputContext(num_replicas_in_sync=num_replicas)

    check_message(
        rf"^SplitBatchError: .*size {global_batch_size} is not divisible by "
        rf"num_replicas {num_replicas}: .*such as {hint}",
        lambda: ctx.get_per_replica_batch_size(global_batch_size),
    )


@pytest.mark.parametrize("backend", ["in_graph", "tf_mirrored"])
@pytest.mark.parametrize("asked", [False, True])
def test_iterators_are_tuned_only_where_asked_for(backend, asked, monkeypatch):
    """Freeing a tuned one stalls; a stock strategy's buffers are never tuned."""
    repl = replicator.create(backend, num_replicas=2, devices=["CPU:0", "CPU:1"])
    is_tuned = []
    make_iterator = tf.data.Dataset.__iter__

    def spy(dataset):
        is_tuned.append(dataset.options().autotune.enabled)
        return make_iterator(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", spy)
    options = tf.data.Options()
    if asked:
        options.autotune.enabled = True
    data = tf.data.Dataset.range(8).with_options(options)
    repl.make_input_iterator(lambda ctx: data).get_next()

    assert (backend == "in_graph" and asked) == any(is_tuned)
    assert None not in is_tuned


def _of_eleven(repl, **options):
    return repl.make_input_iterator(lambda _: tf.data.Dataset.range(11), **options)


def _read(batch):
    return [int(value) for value in batch]


def test_an_exhausted_iterator_stays_exhausted(in_graph):
    inputs = _of_eleven(in_graph)

    assert [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] == list(map(_read, inputs))
    for _ in range(2):
        assert "end" == next(inputs, "end")
        with pytest.raises(tf.errors.OutOfRangeError):
            in_graph.run(tf.identity, inputs)
    assert (5, True) == (inputs.num_steps, inputs.is_at_end)


@pytest.mark.parametrize("repl_once", [("tf_mirrored", 2)], indirect=True)
def test_a_replica_that_cancels_the_others_at_the_end_is_the_end(
    repl_once, monkeypatch
):
    """Which of the two errors a stock strategy raises is a race."""

    def cancelled(_source):
        raise tf.errors.CancelledError(None, None, "cancelled by the executor")

    monkeypatch.setattr(repl_once, "_build", lambda _: (cancelled, [None]))
    endless = repl_once.make_input_iterator(
        lambda _: tf.data.Dataset.range(11).repeat()
    )

    with pytest.raises(tf.errors.OutOfRangeError):
        repl_once.run(tf.identity, _of_eleven(repl_once))
    with pytest.raises(tf.errors.CancelledError):
        repl_once.run(lambda x: x, endless)


def _rows(rows, repl):
    return replicator.PerReplica(
        [tf.ragged.constant(rows[r % len(rows)]) for r in range(repl.num_replicas)]
    )


def test_values_of_other_lengths_and_python_numbers_are_the_same_step(repl_once):
    traced, many = [], repl_once.num_replicas

    def step(x):
        traced.append(1)
        rows, number = x
        return tf.reduce_sum(rows), rows.nrows(), number + 1

    def run(rows, number):
        values = _rows(rows, repl_once), replicator.PerReplica([number] * many)
        sums, counts, more = repl_once.run(step, values)
        assert [number + 1] * many == [float(value) for value in more]
        return [(int(s), int(c)) for s, c in zip(sums, counts, strict=True)]

    first = run([[[1, 2], [3]], [[4], [5, 6, 7]]], 1.0)
    num_traces = len(traced)
    second = run([[[1], [2, 3, 4]], [[], [5]]], 2.0)

    assert ([(6, 2), (22, 2)] * many)[:many] == first
    assert ([(10, 2), (5, 2)] * many)[:many] == second
    assert num_traces == len(traced)


def test_values_that_do_not_fit_together_are_refused(in_graph):
    for pair in (
        [tf.ragged.constant([[1]]), tf.constant([[1]])],
        [tf.zeros([2]), tf.zeros([3])],
    ):
        check_message(
            "^ValueError: inputs differ between replicas in shape or",
            lambda pair=pair: in_graph.run(tf.identity, replicator.PerReplica(pair)),
        )
    for value in (5, None, tf.sparse.from_dense([[1]])):
        check_message(
            "^TypeError: PerReplica takes a sequence with one value pe",
            lambda value=value: replicator.PerReplica(value),
        )


def test_steps_of_every_kind_of_signature_are_taken(repl_once):
    values = replicator.PerReplica([1.0] * repl_once.num_replicas)
    steps = [
        tf.identity,
        tf.function(lambda x: x),
        lambda *batch: batch[0],
        lambda x, y=1: x,
        abs,
    ]

    assert [1.0] * 5 == [float(repl_once.run(step, values)[0]) for step in steps]


KINDS = {
    "dense": tf.reshape(tf.range(14.0), [7, 2]),
    "strings": tf.strings.as_string(tf.range(7)),
    "ragged": tf.ragged.constant([[0], [1, 1], [], [3], [4, 4, 4], [5], [6]]),
    "rags of rags": tf.ragged.constant([[[0], []], [[1]], [], [[3]], [], [[5]], [[6]]]),
    "sparse": tf.sparse.from_dense(tf.reshape(tf.range(14), [7, 2])),
}


def _dense(value):
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.numpy().tolist()


def _batches(values, size, **options):
    def input_fn(ctx):
        examples = tf.data.Dataset.from_tensor_slices(values)
        own = examples.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return own.batch(size, **options)

    return input_fn


def _count(batch):
    return replicator.all_sum(tf.shape(batch)[0])


def _epoch(run):
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            yield run()


def _counts(repl, inputs):
    return [int(total[0]) for total in _epoch(lambda: repl.run(_count, inputs))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_is_divided(kind):
    repl = replicator.create("in_graph", num_replicas=4)
    alone = repl.make_input_iterator(_batches(KINDS[kind], 2), PER_REPLICA)
    rows = _dense(KINDS[kind])
    apart = [[_dense(part) for part in batch] for batch in alone]

    for size, lengths in ((2, [[2, 2, 2, 1]]), (1, [[1, 1, 1, 1], [0, 1, 1, 1]])):
        inputs = repl.make_input_iterator(_batches(KINDS[kind], size))
        steps = [[_dense(part) for part in batch] for batch in inputs]
        assert rows == [row for step in steps for part in step for row in part]
        assert lengths == [list(map(len, step)) for step in steps]
    assert sorted(map(str, rows)) == sorted(
        str(row) for step in apart for part in step for row in part
    )


def test_batches_of_a_fixed_size_or_without_examples(in_graph):
    """The first end with the last whole step, as they do under a stock strategy."""
    fixed = _batches(tf.range(100), 8, drop_remainder=True)
    numbers = tf.data.Dataset.range(6).batch(1)
    filtered = numbers.map(lambda x: tf.boolean_mask(x, (x < 2) | (x > 3)))

    for input_fn, expected in ((fixed, [16] * 6), (lambda _: filtered, [2, 0, 2])):
        inputs = in_graph.make_input_iterator(input_fn)
        assert expected == _counts(in_graph, inputs)


def test_one_step_takes_inputs_of_every_kind():
    repl = replicator.create("in_graph", num_replicas=2, devices=["CPU:0", "CPU:1"])
    made = [
        repl.make_input_iterator(
            _batches(tf.range(12), 2, drop_remainder=is_fixed),
            mode,
            prefetch_to_device=num_batches,
        )
        for is_fixed, mode, num_batches in (
            (False, PER_REPLICA, 0),
            (False, PER_REPLICA, 2),
            (True, InputReplicationMode.SINGLE, 0),
            (True, InputReplicationMode.SINGLE, 2),
            (False, InputReplicationMode.PER_WORKER, 2),
        )
    ]

    for inputs in made:
        assert [4, 4, 4] == _counts(repl, inputs)


ROWS = tf.data.Dataset.from_tensor_slices(tf.ones([6, 2]))
NUMBERS = tf.data.Dataset.range(3)


@pytest.mark.parametrize(
    ("batches", "num_steps"),
    [
        (ROWS.batch(2), 2),
        (ROWS.map(lambda x: {"a": x}).batch(2), 2),
        (ROWS.batch(2).map(lambda x: (tf.RaggedTensor.from_tensor(x), x)), 2),
        (ROWS.batch(2, drop_remainder=True), 1),
        (ROWS.batch(2).map(lambda x: tf.ensure_shape(x, [2, None])), 1),
        (NUMBERS, 1),
        (NUMBERS.map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)), 1),
        (ROWS.batch(2).map(lambda x: (x, tf.ones([4]))), 1),
        (ROWS.window(2), 1),
    ],
)
def test_only_batches_of_any_size_can_be_divided(batches, num_steps):
    repl = replicator.create("in_graph", num_replicas=2)

    assert num_steps == len(list(repl.make_input_iterator(lambda _: batches)))


DEVICES = ["CPU:0", "CPU:1"]


def numbered(num_batches):
    def input_fn(ctx):
        start = 100 * ctx.input_pipeline_id
        return tf.data.Dataset.range(start, start + num_batches)

    return input_fn


def read(inputs, num_steps):
    return [[int(value) for value in inputs.get_next()] for _ in range(num_steps)]


@pytest.fixture(scope="module")
def on_two_devices():
    return replicator.create("in_graph", num_replicas=2, devices=DEVICES)


@pytest.mark.parametrize("mode", InputReplicationMode)
def test_each_batch_waits_on_the_device_of_its_replica(on_two_devices, mode):
    """A stock strategy prefetches in its own way."""
    repl = on_two_devices
    stock = replicator.create("tf_mirrored", num_replicas=2, devices=DEVICES)
    plain = repl.make_input_iterator(numbered(8), mode)
    ahead, others = (
        each.make_input_iterator(numbered(8), mode, prefetch_to_device=2)
        for each in (repl, stock)
    )

    batch = ahead.get_next()

    assert list(repl.devices) == [value.device for value in batch]
    expected = read(plain, 3)
    assert expected == [[int(value) for value in batch], *read(ahead, 2)]
    assert expected == read(others, 3)


def test_a_pipeline_works_ahead_of_the_steps():
    repl = replicator.create("in_graph", num_replicas=2)
    num_read = {}

    def counting(name):
        def input_fn(_):
            counter = num_read[name] = tf.Variable(0, dtype=tf.int64)
            data = tf.data.Dataset.range(100)
            options = tf.data.Options()
            # tf.data may put a small buffer of its own at the end of a pipeline.
            options.experimental_optimization.inject_prefetch = False
            return data.map(lambda x: x + 0 * counter.assign_add(1)).with_options(
                options
            )

        return input_fn

    plain = repl.make_input_iterator(counting("plain"))
    ahead = repl.make_input_iterator(counting("ahead"), prefetch_to_device=3)
    assert [[0, 1]] == read(plain, 1) == read(ahead, 1)
    while int(num_read["ahead"]) < 2 + 3 * 2:  # a thread fills the buffer
        pass

    assert 2 == int(num_read["plain"])


def test_a_number_of_batches_that_makes_no_sense(on_two_devices):
    for wrong in (-1, True, "2", 1.5):
        with pytest.raises(
            ValueError, match=r"prefetch_to_device .* .batches to prefetch"
        ):
            on_two_devices.make_input_iterator(numbered(1), prefetch_to_device=wrong)


# The iterators of a stock strategy may be at their end after a step that failed.
BACKENDS = [("single", 1), ("in_graph_mirrored", 2)]
ELEMENTS = 40
MODES = [InputReplicationMode.SINGLE, InputReplicationMode.PER_REPLICA]


def from_python(ctx):
    del ctx
    signature = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(
        lambda: iter(range(ELEMENTS)), output_signature=signature
    )


def refuse(x, bad):
    tf.debugging.assert_none_equal(x, tf.constant(bad, tf.int64))
    return x


def make_step(bad):
    total = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step(x):
        total.assign_add(refuse(x, bad))
        return x

    return step


def outcomes(repl, step, inputs, num_calls, num_steps=1):
    """What the last step of each call was given; None where it failed."""

    def call():
        try:
            return [int(x) for x in repl.run(step, inputs, num_steps=num_steps)]
        except tf.errors.InvalidArgumentError:
            return None

    return [call() for _ in range(num_calls)]


@pytest.mark.parametrize("repl", BACKENDS, indirect=True)
def test_batches_that_failed_steps_read_are_not_read_again(repl, tmp_path):
    """Five steps that ended and the one that failed, of a dispatch of eight."""
    size = repl.num_replicas
    with repl.context():
        step = make_step(5 * size)
        weight = tf.Variable(0.0)
    inputs = repl.make_input_iterator(from_python)

    assert [None] == outcomes(repl, step, inputs, 1, num_steps=8)
    assert 6 == inputs.num_steps
    repl.make_checkpoint_manager(tmp_path, weight=weight, inputs=inputs).save(6)
    expected = [[6 * size + r for r in range(size)]]
    assert expected == outcomes(repl, step, inputs, 1)
    again = repl.make_input_iterator(from_python)
    repl.make_checkpoint_manager(tmp_path, weight=weight, inputs=again).restore()
    assert 6 == again.num_steps
    assert expected == outcomes(repl, step, again, 1)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_an_element_that_raises_leaves_replicas_in_step(num_steps):
    repl = replicator.create("in_graph", num_replicas=2)
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.range(ELEMENTS).map(lambda x: refuse(x, 4))
    )
    step = make_step(-1)

    found = outcomes(repl, step, inputs, 3 if num_steps == 1 else 1, num_steps)

    assert None is found[-1]
    assert 3 == inputs.num_steps
    assert [[6, 7]] == outcomes(repl, step, inputs, 1)


@pytest.mark.parametrize("mode", MODES, ids=["one pipeline", "one per replica"])
def test_next_keeps_replicas_in_step_too(mode):
    """Elements 0 and 1, 2 (raises) and 3, 4 and 5."""
    repl = replicator.create("in_graph", num_replicas=2)

    def input_fn(ctx):
        numbers = tf.data.Dataset.range(6)
        mine = numbers.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return mine.map(lambda x: refuse(x, 2))

    inputs = repl.make_input_iterator(input_fn, mode)
    first = [int(x) for x in next(inputs)]
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(inputs)
    last = [int(x) for x in next(inputs)]

    assert ([0, 1], [4, 5]) == (first, last)
    assert 3 == inputs.num_steps
    assert [] == list(inputs)
    assert 3 == inputs.num_steps


def test_counters_are_0_before_a_function_can_count(monkeypatch):
    """Assignments on another worker are not waited for by functions that run there."""
    waited = []
    monkeypatch.setattr(_tf_compat, "wait_for_remote_ops", lambda: waited.append(1))
    repl = replicator.create("in_graph", num_replicas=2)

    repl.make_input_iterator(from_python, InputReplicationMode.PER_REPLICA).source  # noqa: B018

    assert waited


PROGRAM_SEC = 300.0


@pytest.fixture
def train():
    yield programs.determined_losses
    replicator.set_determinism(None)


@pytest.mark.processes
def test_runs_with_one_seed_are_equal_bit_by_bit(train, tmp_path):
    first, again, other = train(3), train(3), train(4)
    code, text = fork_server.server(**case_cluster.ENV).run(
        [programs.__file__, "determined_training", "3"],
        env={**os.environ, **case_cluster.ENV},
        log=tmp_path / "log",
        timeout_sec=PROGRAM_SEC,
    )

    assert 0 == code, text
    assert first == again == text.splitlines()[-1].split()
    assert first != other


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**32, "3"])
def test_seeds_are_checked(seed):
    with pytest.raises(ValueError, match=r"seed .* must be an integer from 0 to 42949"):
        replicator.set_determinism(seed)

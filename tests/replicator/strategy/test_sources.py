"""What ``fit`` reads of its data: as often, as much and in the order of one device."""

import contextlib
import functools
import time

import covering
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import replicator
from replicator import StrategyError

SIZES = (4, 3, 4, 1, 5, 2)  # rows of each batch: not even, and one for two replicas


class Log(list):
    def batches(self, name="", sizes=SIZES):
        self.append(f"open {name}")
        for index, size in enumerate(sizes):
            self.append((name, index))
            yield _batch(index, size)


class Pieces(keras.utils.PyDataset):
    def __init__(self, log, name, **options):
        super().__init__(**options)
        self.log, self.name = log, name

    def __len__(self):
        return len(SIZES)

    def __getitem__(self, index):
        self.log.append((self.name, index))
        return _batch(index, SIZES[index])

    def on_epoch_begin(self):
        self.log.append(f"open {self.name}")

    def on_epoch_end(self):
        self.log.append(f"close {self.name}")


def _batch(index, size):
    x = (index + np.linspace(0, 0.5, size, dtype=np.float32))[:, None] / len(SIZES)
    return x, 1 + np.sin(9 * x)


def _dataset(generator):
    spec = tf.TensorSpec((None, 1))
    dataset = tf.data.Dataset.from_generator(generator, output_signature=(spec, spec))
    options = tf.data.Options()  # otherwise TensorFlow reads ahead by timing
    options.autotune.enabled = False
    return dataset.with_options(options)


def _stream(log, name):
    """Goes on where the iterator before it has stopped."""
    whole = log.batches(name, SIZES * 9)
    return _dataset(lambda: whole)


def _again(log, name):
    return _dataset(functools.partial(log.batches, name))


SOURCES = {
    "generator": lambda log, name: log.batches(name),
    "generator of None": lambda log, name: ((*b, None) for b in log.batches(name)),
    "pieces": Pieces,
    "pieces of threads": functools.partial(Pieces, workers=2),
    "dataset": _again,
    "dataset of None": lambda log, name: _again(log, name).map(lambda *b: (*b, None)),
    "known size": lambda log, name: _again(log, name).apply(
        tf.data.experimental.assert_cardinality(len(SIZES))
    ),
    "shuffled": lambda log, name: (
        _again(log, name).unbatch().shuffle(7, seed=3).batch(4)
    ),
    "cached": lambda log, name: _again(log, name).unbatch().cache().batch(4),
    "stream": _stream,
}
# Keras reads them ahead, as far as there is time before the last step: to their end.
HAVE_THREADS = list(SOURCES)[:4]


@functools.cache
def _model(scope, steps_per_execution):
    with scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


def _outcome(scope, steps_per_execution, method, source, validation, options):
    keras.utils.set_random_seed(1)
    model = _model(scope, steps_per_execution)
    numbers = np.random.RandomState(0)
    model.set_weights([numbers.randn(*w.shape) for w in model.get_weights()])
    log = Log()
    x = SOURCES[source](log, "data")
    options = {"verbose": 0, **options}
    if validation:
        options["validation_data"] = SOURCES[validation](log, "validation")
    found = getattr(model, method)(x, **options)
    if method == "fit":
        found = np.hstack(list(found.history.values()))
    return np.hstack([np.ravel(v) for v in [found, *model.get_weights()]]), log


MIRRORED = {"variable_placement": "mirrored", "devices": ["CPU:0", "CPU:1"]}


@functools.cache
def _ours(name):
    """The backends whose numbers are those of one device for parts of any size."""
    if name == "single":
        return replicator.create("single")
    options = MIRRORED if name == "mirrored" else {}
    return replicator.create("in_graph", num_replicas=2, **options)


@st.composite
def _programs(draw):
    method = draw(st.sampled_from(["fit", "evaluate", "predict"]))
    source = draw(st.sampled_from(list(SOURCES)))
    validation, options = None, {}
    if source not in HAVE_THREADS:
        steps = draw(st.sampled_from([None, 1, 2, 3]))
        options["steps_per_epoch" if method == "fit" else "steps"] = steps
    if method == "fit":
        options["epochs"] = draw(st.integers(1, 3))
        options["shuffle"] = draw(st.booleans())
        validation = draw(st.none() | st.sampled_from(list(SOURCES)))
    return draw(st.sampled_from([1, 2])), method, source, validation, options


@settings(
    max_examples=covering.num_examples(5, 9),
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
)
@given(
    backend=st.sampled_from(["mirrored", "shared", "shared", "single"]),
    program=_programs(),
)
def test_sources_are_read_as_on_one_device(backend, program):
    expected, one = _outcome(contextlib.nullcontext, *program)

    found, log = _outcome(_ours(backend).scope, *program)

    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    is_ordered = "pieces of threads" not in program
    assert one == log if is_ordered else sorted(map(str, one)) == sorted(map(str, log))


@pytest.mark.parametrize(("backend", "is_dataset"), [("shared", 0), ("mirrored", 1)])
def test_a_model_that_is_not_built_takes_no_batch_for_its_shapes(backend, is_dataset):
    """Six batches over 0 to 23 have the mean 11.5."""
    ones = keras.initializers.Ones()
    with _ours(backend).scope():
        layer = keras.layers.Dense(1, kernel_initializer=ones, trainable=False)
        model = keras.Sequential([layer])
        model.compile(loss=lambda y, z: z)

    def batches():
        for start in range(0, 24, 4):
            x = np.arange(start, start + 4, dtype=np.float32)[:, None]
            yield x, x

    data = _dataset(batches) if is_dataset else batches()

    assert 11.5 == pytest.approx(model.evaluate(data, verbose=0))


def test_a_stock_strategy_opens_its_source_once_too():
    """It reads ahead, but all, in order; parts of other sizes it weights alike."""
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    program = (1, "fit", "shuffled", "dataset", {"epochs": 2})
    _, one = _outcome(contextlib.nullcontext, *program)

    _, log = _outcome(repl.scope, *program)

    assert one == log


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("prefetched", [0, 2])
def test_input_iterators_open_nothing_before_a_step(repl_once, prefetched, tmp_path):
    log = Log()
    inputs = repl_once.make_input_iterator(
        lambda ctx: _again(log, ctx.input_pipeline_id),
        replicator.InputReplicationMode.PER_REPLICA,
        prefetch_to_device=prefetched,
    )
    manager = repl_once.make_checkpoint_manager(
        tmp_path, inputs=inputs, weight=tf.Variable(1.0)
    )
    manager.save(0)
    assert 2 == len(inputs.element_spec)
    assert not log

    repl_once.run(lambda batch: tf.reduce_sum(batch[0]), inputs, num_steps=2)

    sources = range(repl_once.num_replicas)
    assert {f"open {source}" for source in sources} == {
        entry for entry in log if isinstance(entry, str)
    }
    if not prefetched and "Mirrored" not in type(repl_once).__name__:
        read = [(source, index) for source in sources for index in range(2)]
        assert read == sorted(entry for entry in log if not isinstance(entry, str))


def test_datasets_of_a_function_are_read_by_steps_alone(in_graph):
    log, strategy = Log(), in_graph.as_strategy()

    distributed = strategy.distribute_datasets_from_function(lambda _: _again(log, ""))
    iterator = iter(distributed)
    assert not log
    for num_steps in (1, 2, 3):
        strategy.run(lambda batch: tf.reduce_sum(batch[0]), args=(next(iterator),))
        assert ["open ", *[("", index) for index in range(2 * num_steps)]] == log


def test_a_dataset_that_tensorflow_tunes_is_read_one_batch_ahead():
    log, spec = Log(), tf.TensorSpec((None, 1))
    dataset = tf.data.Dataset.from_generator(log.batches, output_signature=(spec, spec))
    strategy = _ours("shared").as_strategy()

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    next(iterator)
    time.sleep(0.3)

    assert ["open ", ("", 0), ("", 1)] == log


@pytest.fixture(scope="module")
def strategy():
    return replicator.create("in_graph", num_replicas=2).as_strategy()


def _lists(strategy, dataset):
    local = strategy.experimental_local_results
    return [[part.numpy().tolist() for part in local(batch)] for batch in dataset]


def test_every_example_of_a_global_batch_goes_to_one_replica(strategy):
    dataset = tf.data.Dataset.range(7).batch(4)

    distributed = strategy.experimental_distribute_dataset(dataset)

    assert [[[0, 1], [2, 3]], [[4], [5, 6]]] == _lists(strategy, distributed)
    again = strategy.experimental_distribute_dataset(distributed)
    assert again is distributed


def test_parts_have_static_shapes_where_batches_have(strategy):
    dataset = tf.data.Dataset.range(8).batch(4, drop_remainder=True)

    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))

    assert [(2,), (2,)] == [p.shape for p in strategy.experimental_local_results(batch)]


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_a_tuple_of_one_component_stays_one(strategy, is_in_turn):
    dataset = tf.data.Dataset.range(4).batch(2).map(lambda x: ((x, -x),))
    if is_in_turn:
        distributed = strategy.distribute_datasets_from_function(lambda ctx: dataset)
    else:
        distributed = strategy.experimental_distribute_dataset(dataset)

    ((first, second),) = next(iter(distributed))

    parts = [strategy.experimental_local_results(value) for value in (first, second)]
    of_first, of_second = ([part.numpy().tolist() for part in of] for of in parts)
    assert of_first == ([[0, 1], [2, 3]] if is_in_turn else [[0], [1]])
    assert of_second == [[-x for x in part] for part in of_first]


def test_ragged_and_sparse_batches_are_split(strategy):
    ragged = tf.ragged.constant([[1], [], [2, 3]])
    sparse = tf.sparse.from_dense([[0, 1], [2, 0], [0, 3]])
    dataset = tf.data.Dataset.from_tensors({"r": ragged, "s": sparse})

    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
    local = strategy.experimental_local_results

    assert [[[1]], [[], [2, 3]]] == [part.to_list() for part in local(batch["r"])]
    dense = [tf.sparse.to_dense(part).numpy().tolist() for part in local(batch["s"])]
    assert [[[0, 1]], [[2, 0], [0, 3]]] == dense


@pytest.mark.parametrize(
    ("drop_remainder", "expected"),
    [(False, [[[0, 1], [2, 3]], [[4], []]]), (True, [[[0, 1], [2, 3]]])],
)
def test_pipelines_of_replicas_take_turns(strategy, drop_remainder, expected):
    def dataset_fn(ctx):
        assert (1, 0) == (ctx.num_input_pipelines, ctx.input_pipeline_id)
        size = ctx.get_per_replica_batch_size(4)
        return tf.data.Dataset.range(5).batch(size, drop_remainder=drop_remainder)

    distributed = strategy.distribute_datasets_from_function(dataset_fn)

    assert expected == _lists(strategy, distributed)


def test_an_iterator_is_read_as_an_optional_in_a_function(strategy):
    dataset = tf.data.Dataset.range(6).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @tf.function
    def total(iterator):
        result, optional = tf.constant(0, tf.int64), iterator.get_next_as_optional()
        while optional.has_value():
            sums = strategy.run(tf.reduce_sum, args=(optional.get_value(),))
            result += strategy.reduce("SUM", sums, axis=None)
            optional = iterator.get_next_as_optional()
        return result

    assert 15 == int(total(iterator))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (
            lambda s: s.experimental_distribute_dataset([1]),
            r"takes a tf.data.Dataset of global batches, but got",
        ),
        (
            lambda s: s.experimental_distribute_dataset(tf.data.Dataset.range(2)),
            r"yields scalars, .* write dataset\.batch\(global_batch_size\)",
        ),
        (
            lambda s: s.distribute_datasets_from_function(lambda _: 1),
            r"returns a tf\.data\.Dataset, but it returned",
        ),
    ],
)
def test_what_is_no_dataset_of_batches_is_refused(strategy, misuse, message):
    with pytest.raises(StrategyError, match=message):
        misuse(strategy)

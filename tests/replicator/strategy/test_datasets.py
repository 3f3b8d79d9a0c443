"""Distributed datasets: who gets which examples."""

import pytest
import tensorflow as tf

import replicator
from replicator.errors import StrategyError


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

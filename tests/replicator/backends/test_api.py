"""The public names of the package, and what importing it costs."""

import copy
import inspect
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, catalog, errors
from replicator.errors import OtherReplicatorError


def test_public_names_are_sorted_and_all_there():
    assert sorted(replicator.__all__) == list(replicator.__all__)
    assert list(replicator.__all__) == dir(replicator)


@pytest.mark.parametrize("name", replicator.__all__)
def test_every_public_name_is_documented_and_listed_where_it_is_defined(name):
    """It has a docstring, and the stub imports it from its own module."""
    thing = getattr(replicator, name)
    stub = Path(replicator.__file__).with_suffix(".pyi").read_text()
    module = thing.__module__.removeprefix("replicator")
    pattern = rf"from {re.escape(module)} import (\(\n[^)]*\b|.*\b){name} as {name}\b"

    assert inspect.getdoc(thing)
    assert re.search(pattern, stub)


@pytest.mark.parametrize(
    "kind", [n for n in replicator.__all__ if inspect.isclass(getattr(replicator, n))]
)
def test_every_public_method_is_documented(kind):
    """Also where a subclass overrides it; what Keras makes is Keras' to document."""
    missing = [
        name
        for name, member in inspect.getmembers(getattr(replicator, kind))
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and getattr(member, "fget", member).__module__.startswith("replicator")
        and not inspect.getdoc(member)
    ]

    assert [] == missing


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No replicator attribute tower"):
        _ = replicator.tower


def test_planning_tools_load_no_tensorflow():
    """Importing the package and its catalogue is free; the first name is not."""
    code = (
        "import sys, replicator, replicator.catalog, replicator.errors\n"
        "heavy = {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert dir(replicator) == list(replicator.__all__)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )

    assert "" == done.stderr
    assert 0 == done.returncode


@pytest.mark.parametrize("name", catalog.BACKENDS)
def test_every_backend_of_the_catalogue_exists(name):
    """Its target is a replicator class, and its name is its key."""
    info = catalog.BACKENDS[name]

    assert name == info.name
    assert issubclass(info.load(), replicator.Replicator)
    assert info == catalog.entry_of(type("OfAUser", (info.load(),), {}))


def test_a_class_outside_of_the_catalogue_has_no_entry():
    with pytest.raises(LookupError, match=r"builtins:object is not a backend of the"):
        catalog.entry_of(object)


def test_the_tree_of_errors_in_the_documentation_is_complete():
    """Each derives from ReplicatorError, or is a warning, and the docstring has it."""
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ]

    bases = errors.ReplicatorError, UserWarning
    assert all(issubclass(kind, bases) for kind in kinds)
    assert [] == [k.__name__ for k in kinds if k.__name__ not in errors.__doc__]


_OTHER = r"was made by another replicator \(InGraphReplicator, num_replicas=4\), .*"


@pytest.fixture(scope="module")
def four():
    return replicator.create("in_graph", num_replicas=4)


def _count(batch):
    return replicator.all_sum(tf.size(batch))


def _of_six(ctx):
    return tf.data.Dataset.range(96).batch(6, drop_remainder=True)


def _trains(repl, **options):
    """A weight, and a step that moves it by the mean of the gradients 1 and 3..."""
    with repl.context():
        weight = tf.Variable(0.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), **options)

    def step():
        replica_id = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        optimizer.apply_gradients([(1.0 + 2.0 * replica_id, weight)])

    return weight, optimizer, step


@pytest.mark.parametrize("mode", InputReplicationMode)
def test_inputs_of_another_replicator_are_refused(repl_once, four, mode):
    """Two replicas took 12 examples of a step of 24, or divided by zero."""
    inputs = four.make_input_iterator(_of_six, mode)

    with pytest.raises(
        OtherReplicatorError,
        match=rf"input iterator {_OTHER}pass what make_input_iterator\(\) of this one",
    ):
        repl_once.run(_count, inputs)

    assert [24] * 4 == [int(value) for value in four.run(_count, inputs)]
    assert 1 == inputs.num_steps


def test_values_of_another_replicator_are_refused(repl_once):
    """What run() returned and what inputs yield; a list of the values is nobody's."""
    other = replicator.create("in_graph", num_replicas=repl_once.num_replicas)
    inputs = other.make_input_iterator(_of_six)
    made = [other.run(tf.identity, inputs), next(inputs)]

    for values in made:
        with pytest.raises(
            OtherReplicatorError,
            match=r"a PerReplica was made by .*pass PerReplica\(list",
        ):
            repl_once.run(_count, values)
        with pytest.raises(
            OtherReplicatorError,
            match=r"a PerReplica was made by .*pass what run\(\) of this one returned",
        ):
            repl_once.reduce("sum", values)
        num_examples = 6 * repl_once.num_replicas
        for nobodys in (replicator.PerReplica(list(values)), copy.deepcopy(values)):
            assert num_examples == int(repl_once.run(_count, nobodys)[0])


def test_an_optimizer_that_updates_in_another_way_is_refused(four):
    """A control, a sharded update and a stock strategy each average differently."""
    makers = [
        (four, {"sharded_update": True}),
        (replicator.create("tf_mirrored", num_replicas=1), {}),
        (
            replicator.create("in_graph", num_replicas=2, without_communication=True),
            {},
        ),
    ]
    users = [replicator.create("in_graph", num_replicas=2)] * 3
    makers.append((users[0], {}))
    users.append(replicator.create("tf_mirrored", num_replicas=1))

    for (made_by, options), user in zip(makers, users, strict=True):
        _, _, step = _trains(made_by, **options)
        with pytest.raises(
            OtherReplicatorError,
            match=r"wrapped optimizer 'SGD' was made by another replicator .*"
            r"use what wrap_optimizer\(\) of this one returns",
        ):
            user.run(step)


def test_an_optimizer_that_updates_alike_is_taken(four):
    """Wrapped for four replicas, it debugs on one."""
    weight, optimizer, step = _trains(four)
    single = replicator.create("single")

    single.run(step)

    assert 0.0 > weight.numpy()
    assert 1 == int(optimizer.iterations)


def test_checkpoints_of_another_replicator_are_refused(four, tmp_path):
    """Its inputs would be counted with other replicas, its state not be gathered."""
    two = replicator.create("in_graph", num_replicas=2)
    weight, optimizer, _ = _trains(four, sharded_update=True)
    inputs = four.make_input_iterator(_of_six)

    with pytest.raises(OtherReplicatorError, match=rf"the input iterator {_OTHER}"):
        two.make_checkpoint_manager(tmp_path, inputs=inputs, weight=weight)
    with pytest.raises(
        OtherReplicatorError, match=rf"wrapped optimizer 'SGD' {_OTHER}"
    ):
        two.make_checkpoint_manager(tmp_path, weight=weight, optimizer=optimizer)


@pytest.mark.parametrize("backend", ["single", "in_graph"])
def test_a_model_of_a_stock_strategy_is_refused_by_name(backend):
    """Its second copy would never follow."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    repl = replicator.create(backend)

    with pytest.raises(
        OtherReplicatorError,
        match=r"variable '.*(kernel|bias).*' was created in the scope of a "
        r"MirroredStrategy, which keeps 2 copies of it.*with repl\.context\(\)",
    ):
        repl.run(lambda: model(tf.ones([2, 1])))
    own = replicator.StrategyReplicator(strategy)
    assert 2 == len(own.run(lambda: model(tf.ones([2, 1]))))


@pytest.mark.parametrize("backend", ["single", "in_graph"])
@pytest.mark.parametrize(
    "use",
    [
        lambda variable: variable.read_value(),
        lambda variable: variable.assign_add(1.0),
    ],
)
def test_a_method_of_a_variable_of_a_stock_strategy_is_refused_by_name(backend, use):
    """TensorFlow said that strategies are mixed, and not which variable."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable(1.0, name="of_others")
    repl = replicator.create(backend)

    with pytest.raises(
        OtherReplicatorError,
        match=r"variable 'of_others:0' was created in the scope of a MirroredStrategy, "
        r"which keeps 2 copies of it",
    ):
        repl.run(lambda: use(variable))
    assert 1.0 == variable.numpy()

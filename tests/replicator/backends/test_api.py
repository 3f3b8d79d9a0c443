"""Public names, what their import costs, misuse, and what belongs to others."""

import copy
import inspect
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, OtherReplicatorError, catalog


def test_public_names_are_sorted_documented_and_listed_where_they_are_defined():
    """The stub imports each from its own module; methods of subclasses have docs too.

    What Keras makes is Keras' to document.
    """
    stub = Path(replicator.__file__).with_suffix(".pyi").read_text()
    assert sorted(replicator.__all__) == list(replicator.__all__) == dir(replicator)
    missing = []
    for name in replicator.__all__:
        thing = getattr(replicator, name)
        module = re.escape(thing.__module__.removeprefix("replicator"))
        pattern = rf"from {module} import (\(\n[^)]*\b|.*\b){name} as {name}\b"
        if not (inspect.getdoc(thing) and re.search(pattern, stub)):
            missing.append(name)
        missing += [
            f"{name}.{member_name}"
            for member_name, member in inspect.getmembers(thing)
            if inspect.isclass(thing)
            and not member_name.startswith("_")
            and (inspect.isfunction(member) or isinstance(member, property))
            and getattr(member, "fget", member).__module__.startswith("replicator")
            and not inspect.getdoc(member)
        ]

    assert [] == missing
    with pytest.raises(AttributeError, match="No replicator attribute tower"):
        _ = replicator.tower


def test_planning_tools_load_no_tensorflow():
    code = (
        "import sys, replicator, replicator.catalog, replicator.errors\n"
        "heavy = {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert dir(replicator) == list(replicator.__all__)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )

    assert ("", 0) == (done.stderr, done.returncode)


@pytest.mark.parametrize("name", catalog.BACKENDS)
def test_every_backend_of_the_catalogue_exists(name, monkeypatch):
    """Its class is a replicator; by default there is one replica per worker."""
    info = catalog.BACKENDS[name]
    kind = info.load()

    assert name == info.name
    assert issubclass(kind, replicator.Replicator)
    assert info == catalog.entry_of(type("OfAUser", (kind,), {}))
    default = inspect.signature(kind).parameters["num_replicas"].default
    monkeypatch.setattr(type(info), "load", lambda _: lambda **given: given)
    is_alone = info.processes == "one_process"
    assert {"num_replicas": 1 if is_alone else None} == replicator.create(name)
    assert None is default or is_alone


def test_a_class_outside_of_the_catalogue_has_no_entry():
    with pytest.raises(LookupError, match=r"builtins:object is not a backend of the"):
        catalog.entry_of(object)


def test_every_error_is_public_has_one_base_and_says_what_it_means():
    defined = (Path(replicator.__file__).parent / "errors.py").read_text()
    kinds = {
        n: getattr(replicator, n)
        for n in re.findall(r"^class (\w+)", defined, re.MULTILINE)
    }

    bases = replicator.ReplicatorError, UserWarning
    assert all(issubclass(kind, bases) for kind in kinds.values())
    assert set(kinds) <= set(replicator.__all__)
    assert [] == [name for name, kind in kinds.items() if not vars(kind)["__doc__"]]


PATTERNS = {
    None: replicator.MultiWorkerBetweenGraphReplicator,
    "between_graph": replicator.MultiWorkerBetweenGraphReplicator,
    "in_graph": replicator.MultiWorkerInGraphReplicator,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_makes_an_instance_of_the_class_that_was_called(pattern):
    """Else Python does not call its constructor; a pattern's class has no other."""
    kind, name = PATTERNS[pattern], pattern or "between_graph"
    # Objects before they join a cluster.
    made = replicator.MultiWorkerReplicator.__new__(
        replicator.MultiWorkerReplicator, pattern=pattern, num_replicas=2
    )

    assert type(made) is type(kind.__new__(kind)) is kind
    assert type(kind.__new__(kind, pattern=name)) is kind
    assert made.pattern == name
    (other,) = {"between_graph", "in_graph"} - {name}
    with pytest.raises(
        ValueError,
        match=rf"'{other}' is not that of {kind.__name__}, which is '{name}'; "
        rf"use MultiWorkerReplicator\(pattern='{other}'\)",
    ):
        kind.__new__(kind, pattern=other)


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


def test_inputs_of_another_replicator_are_refused(repl_once, four):
    for mode in InputReplicationMode:
        inputs = four.make_input_iterator(_of_six, mode)

        with pytest.raises(
            OtherReplicatorError,
            match=rf"input iterator {_OTHER}pass what make_input_iterator\(\) of this",
        ):
            repl_once.run(_count, inputs)

        assert [24] * 4 == [int(value) for value in four.run(_count, inputs)]
        assert 1 == inputs.num_steps


def test_values_of_another_replicator_are_refused(repl_once):
    """What run() returned and what inputs yield; a list of the values is nobody's."""
    other = replicator.create("in_graph", num_replicas=repl_once.num_replicas)
    inputs = other.make_input_iterator(_of_six)

    for values in (other.run(tf.identity, inputs), next(inputs)):
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
    """A control, a sharded update and a stock strategy each average differently.

    Wrapped for four replicas, one that updates alike debugs on one.
    """
    two = replicator.create("in_graph", num_replicas=2)
    stock = replicator.create("tf_mirrored", num_replicas=1)
    control = replicator.create("in_graph", num_replicas=2, without_communication=True)
    for owner, options, user in (
        (four, {"sharded_update": True}, two),
        (stock, {}, two),
        (control, {}, two),
        (two, {}, stock),
    ):
        _, _, step = _trains(owner, **options)
        with pytest.raises(
            OtherReplicatorError,
            match=r"wrapped optimizer 'SGD' was made by another replicator .*"
            r"use what wrap_optimizer\(\) of this one returns",
        ):
            user.run(step)

    weight, optimizer, step = _trains(four)
    replicator.create("single").run(step)
    assert 0.0 > weight.numpy()
    assert 1 == int(optimizer.iterations)


def test_checkpoints_of_another_replicator_are_refused(four, tmp_path):
    two = replicator.create("in_graph", num_replicas=2)
    weight, optimizer, _ = _trains(four, sharded_update=True)
    inputs = four.make_input_iterator(_of_six)

    for given, message in (
        ({"inputs": inputs}, rf"the input iterator {_OTHER}"),
        ({"optimizer": optimizer}, rf"wrapped optimizer 'SGD' {_OTHER}"),
    ):
        with pytest.raises(OtherReplicatorError, match=message):
            two.make_checkpoint_manager(tmp_path, weight=weight, **given)


@pytest.mark.parametrize("backend", ["single", "in_graph"])
def test_variables_of_a_stock_strategy_are_refused_by_name(backend):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        variable = tf.Variable(1.0, name="of_others")
    repl = replicator.create(backend)
    created = (
        "was created in the scope of a MirroredStrategy, which keeps 2 copies of it"
    )

    for step, message in (
        (
            lambda: model(tf.ones([2, 1])),
            rf"variable '.*(kernel|bias).*' {created}.*with repl\.context\(\)",
        ),
        (variable.read_value, f"variable 'of_others:0' {created}"),
        (lambda: variable.assign_add(1.0), f"variable 'of_others:0' {created}"),
    ):
        with pytest.raises(OtherReplicatorError, match=message):
            repl.run(step)
    assert 1.0 == variable.numpy()
    own = replicator.StrategyReplicator(strategy)
    assert 2 == len(own.run(lambda: model(tf.ones([2, 1]))))


COUNT, UNKNOWN = replicator.DeviceError, replicator.UnknownBackendError
CREATED = [
    *(
        (name, {}, UNKNOWN, rf"unknown backend {shown}; use one of async, dtensor, in_")
        for name, shown in (
            ("multi_gpu", ".multi_gpu."),
            *((name, ".*") for name in (None, [], ("in_graph", "single"))),
        )
    ),
    *(
        (name, {option: 2}, TypeError, rf"'{name}' has no option '{option}'; it ha")
        for name, option in (
            ("tf_mirrored", "logical_devices_per_replica"),
            ("multi_worker", "worker_timeout_sec"),
        )
    ),
    *(
        (
            "in_graph",
            {"variable_placement": value},
            ValueError,
            rf"variable_placement {shown} is not one of 'auto', 'shared', 'mirrored'",
        )
        for value, shown in (("host", "'host'"), (tf.zeros([2]), "a '.*' .*"))
    ),
    *(
        (name, {"num_replicas": value}, COUNT, message)
        for name, value, message in (
            ("single", 2, r"'single' cannot run num_replicas=2; it ru"),
            (
                "in_graph",
                0,
                r"'in_graph' cannot run num_replicas=0; it runs 1 to 65536",
            ),
            ("in_graph", "2", r"num_replicas '2' must be an integer"),
            ("in_graph", 10**30, r"cannot run num_replicas=10+; it runs 1 to 65536"),
        )
    ),
    *(
        (
            "in_graph",
            {"num_replicas": 2, "timeout_sec": value},
            ValueError,
            rf"timeout_sec {re.escape(repr(value))} must be a positive number of sec",
        )
        for value in (0, -1.0, float("inf"), float("nan"), True, "10")
    ),
]


@pytest.mark.parametrize(("backend", "options", "kind", "message"), CREATED)
def test_options_are_refused_before_anything_is_made(backend, options, kind, message):
    with pytest.raises(kind, match=message):
        replicator.create(backend, **options)


CALLED = [
    (
        replicator.DeviceError,
        r"but got num_replicas=2, devices=None; use InGra",
        lambda: replicator.SingleDeviceReplicator(num_replicas=2),
    ),
    (
        TypeError,
        r"takes a tf.distribute.Strategy, but got 'tf_mirrored'; pass",
        lambda: replicator.StrategyReplicator("tf_mirrored"),
    ),
    (
        TypeError,
        r"PerReplica takes a sequence .* a 'Variable'",
        lambda: replicator.PerReplica(keras.Variable([1.0, 2.0])),
    ),
]


@pytest.mark.parametrize(("kind", "message", "call"), CALLED)
def test_misuse_is_refused_before_anything_is_made(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


def test_errors_survive_a_pipe():
    for kind in replicator.ReplicatorError.__subclasses__():
        error = pickle.loads(pickle.dumps(kind("why")))

        assert (kind, "why") == (type(error), str(error))


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("single", r"every collective is the identity"),
        ("tf_mirrored", r"plans its own collectives and does not show them"),
        ("in_graph", r"no step has been traced yet; call run\(\) first"),
    ],
)
def test_without_a_plan_explain_says_why(backend, text):
    repl = replicator.create(backend, devices=["CPU:0"])

    assert re.search(text, repl.explain())


def test_a_stock_strategy_out_of_sync_is_named(per_replica):
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    with repl.context():
        weight = tf.Variable([1.0, 2.0], name="weight")
    repl.assert_in_sync()
    copies = repl.strategy.experimental_local_results(weight)
    copies[1].assign([1.0, 3.0])

    with pytest.raises(
        replicator.ReplicasOutOfSyncError, match=r"1 mirrored variables differ.*weight"
    ):
        repl.assert_in_sync()


def test_run_in_a_function_of_the_user_or_a_step_is_refused(repl_once):
    """It would count steps when it is traced; a step has one replica."""

    def step():
        return tf.constant(1.0)

    def train():
        return repl_once.run(step)[0]

    for autograph in (True, False):
        with pytest.raises(
            replicator.RunContextError, match=r"inside a tf\.function.*num_steps"
        ):
            tf.function(train, autograph=autograph)()
    with pytest.raises(replicator.RunContextError, match=r"inside a step function"):
        repl_once.run(train)
    assert 0 == repl_once.num_steps_run


def test_a_distribution_of_keras_is_refused_where_a_step_is_traced():
    repl = replicator.create("single")
    keras.distribution.set_distribution(types.SimpleNamespace())
    try:
        with pytest.raises(
            replicator.StrategyError,
            match=r"keras.distribution is set to SimpleNamespace, which Keras accepts "
            r"on TensorFlow and does not do; call keras.distribution.set_distribut",
        ):
            repl.run(lambda: tf.ones([]))
    finally:
        keras.distribution.set_distribution(None)

    assert 1.0 == float(repl.run(lambda: tf.ones([]))[0])

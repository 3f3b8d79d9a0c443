"""Random step functions give on R replicas what R copies in lock step give."""

import dataclasses
import sys
from pathlib import Path

import covering
import pytest
import tensorflow as tf
import written_programs
from fuzzing import (
    checking,
    collectives,
    comparing,
    drawing,
    engine,
    lockstep,
    series,
    structure,
    syntax,
    transformations,
    values,
    variance,
)
from hypothesis import HealthCheck, Phase, given, settings

import replicator
from replicator.collectives import kinds
from replicator.collectives.kinds.all_reduce import AllReduce
from replicator.engine.graph import trace

# `make fuzz` draws thousands; the full run has those of this run and more.
NUM_PROGRAMS = 100 if covering.is_full() else 10
NUM_PROGRAMS_WITH_A_FAULT = 100  # at most: the series ends where the fault is found
SEED = 2019


def _tape(result, *statements, source="b"):
    """The gradient of what the last statement gives."""
    last = statements[-1]
    target = last.results[0] if hasattr(last, "results") else last.result
    return syntax.Differentiate(
        results=(result,),
        body=syntax.Block(statements=statements, result=target),
        watched=(source,),
        sources=(source,),
    )


def test_random_programs_agree(capsys):
    """Values, variables, gradients and refusals, in every placement of variables."""
    found = series.run_series(SEED, NUM_PROGRAMS)

    with capsys.disabled():
        sys.stdout.write(f"\n{found}\n")
    assert not found.differences, "\n".join(found.differences)
    assert NUM_PROGRAMS == found.verdicts.total()
    assert NUM_PROGRAMS // 2 < found.verdicts[checking.Verdict.SAME]


def test_the_interpreter_gives_gradients_of_the_sum_of_targets():
    """Second order through a sum: 64 S of 32 S^2, worked out by hand."""
    inner = _tape(
        "g",
        syntax.Communicate(
            results=("s",), arguments=("b",), kind="all_reduce", parameter="sum"
        ),
        written_programs.compute("y", "tf.square({0})", "s"),
    )
    outer = _tape("h", inner, written_programs.compute("z", "tf.square({0})", "g"))
    replicas = lockstep.Lockstep(
        written_programs.program([outer], "g", "h"), {}, tf.float64
    )

    outputs = replicas.step([{"b": [1.0, 0.0, 2.0]}, {"b": [2.0, 0.5, 2.0]}])

    for gradient, second in outputs:
        assert [12.0, 2.0, 16.0] == gradient.tolist()
        assert [192.0, 32.0, 256.0] == second.tolist()


_OF_W = {"variable": "w"}


@pytest.mark.parametrize(
    ("other", "is_followed"),
    [
        (syntax.Read(result="r", **_OF_W, is_raw=True), False),
        (syntax.Read(result="r", **_OF_W), True),
        (syntax.Write(method="assign", argument="b", **_OF_W), True),
        (syntax.Write(method="assign", argument="b", **_OF_W, form="unread"), False),
        (syntax.Write(method="assign", argument="b", **_OF_W, form="raw"), False),
    ],
)
@pytest.mark.parametrize("is_taken", [True, False])
def test_a_read_by_the_handle_has_a_gradient_where_the_variable_is_followed(
    is_taken, other, is_followed
):
    """As on one device: in a branch that reads it, if only in the other way."""
    own = [syntax.Read(result="s", variable="w", is_raw=True)]
    branch = syntax.Branch(
        result="x",
        predicate="p",
        then=syntax.Block(statements=(), result="b"),
        orelse=syntax.Block(statements=(other,), result="b"),
    )
    tape = syntax.Differentiate(
        results=("g",),
        body=syntax.Block(statements=(branch, *own), result="s"),
        watched=(),
        sources=("w",),
    )
    program = dataclasses.replace(
        written_programs.program(
            [tape],
            "g",
            variables=[written_programs.weight(trainable=True)],
            setting=dataclasses.replace(written_programs.SHARED, num_replicas=1),
        ),
        inputs=(("p", syntax.Type(syntax.BOOL)), ("b", written_programs.FLOAT3)),
    )
    replicas = lockstep.Lockstep(program, {"w": [0.0, 0.0, 0.0]}, tf.float64)

    ((gradient,),) = replicas.step([{"p": is_taken, "b": [0.0] * 3}])

    assert [1.0 * is_followed] * 3 == gradient.tolist()
    assert checking.Verdict.SAME is checking.check(program)


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [
        *(("all_reduce", op) for op in ("mean", "min", "max")),
        *(("reduce_scatter", op) for op in ("sum", "mean", "min", "max")),
        ("all_gather", None),
        ("all_to_all", None),
        ("broadcast", 1),
        ("permute", ((0, 1),)),
    ],
)
def test_gradients_of_the_interpreter_are_those_of_finite_differences(kind, parameter):
    """Of the sum over replicas of the targets, by each element of each replica."""
    twice = written_programs.compute("c", "tf.stack([{0}, tf.sin({0})])", "b")
    collective = syntax.Communicate(
        results=("s",), arguments=("c",), kind=kind, parameter=parameter
    )
    # Replicas use what they get differently: squared, times their own value.
    use = written_programs.compute("y", "tf.reduce_sum(tf.square({0}) * {1})", "s", "b")
    replicas = lockstep.Lockstep(
        written_programs.program([_tape("g", twice, collective, use)], "g", "y"),
        {},
        tf.float64,
    )
    batches = [{"b": [0.3, -1.2, 0.7]}, {"b": [0.9, 0.4, -0.6]}]

    gradients = [outputs[0] for outputs in replicas.step(batches)]

    for replica in range(2):
        for place in range(3):
            targets = []
            for change in (1e-5, -1e-5):
                moved = [{"b": list(batch["b"])} for batch in batches]
                moved[replica]["b"][place] += change
                targets.append(sum(o[1] for o in replicas.step(moved)))
            slope = (targets[0] - targets[1]) / 2e-5
            assert slope == pytest.approx(gradients[replica][place], abs=1e-8)


def test_a_fault_of_the_library_is_found(monkeypatch):
    """A minimum that is a sum: a program that shows the difference comes back."""
    right = trace.TraceContext.communicate

    def wrong(self, kind, *arguments, **options):
        kind = AllReduce(op="sum") if kind == AllReduce(op="min") else kind
        return right(self, kind, *arguments, **options)

    monkeypatch.setattr(trace.TraceContext, "communicate", wrong)

    found = series.run_series(SEED, NUM_PROGRAMS_WITH_A_FAULT, is_shrunk=False)

    assert 1 == len(found.differences)
    assert "'min')" in found.differences[0]


def test_a_tampered_result_is_a_difference():
    """The comparison sees a value, a type and a shape that are wrong."""
    program = written_programs.program(
        [written_programs.compute("v", "{0} + 1.0", "b")], "v"
    )
    expected, _ = checking.interpret(program, tf.float64)
    for tampered in (
        lambda value: value * 1.01,
        lambda value: value.astype("float64"),
        lambda value: value[None],
    ):
        seen = engine.run(program)
        comparing.compare(expected, seen)
        seen.outputs[0][1][0] = tampered(seen.outputs[0][1][0])
        with pytest.raises(
            comparing.DifferenceError, match="call 0, replica 1, output 0"
        ):
            comparing.compare(expected, seen)


def test_drift_of_a_trainable_variable_is_expected_to_be_refused():
    """A write of the replica's own batch must be, of a mean must not be."""
    own = syntax.Write(variable="w", method="assign_sub", argument="b")
    mean = syntax.Communicate(
        results=("s",), arguments=("b",), kind="all_reduce", parameter="mean"
    )
    shared = syntax.Write(variable="w", method="assign_sub", argument="s")
    weight = written_programs.weight(trainable=True)

    drifts = written_programs.program([own], variables=[weight])
    stays = written_programs.program([mean, shared], variables=[weight])

    assert {"w"} == variance.may_differ(drifts)
    assert set() == variance.may_differ(stays)
    assert checking.Verdict.REFUSED is checking.check(drifts)
    assert checking.Verdict.SAME is checking.check(stays)


def test_a_refusal_that_does_not_come_is_a_difference(monkeypatch):
    """The interpreter says that copies drift apart; the library must, too."""
    own = syntax.Write(variable="w", method="assign_sub", argument="b")
    program = written_programs.program(
        [own], variables=[written_programs.weight(trainable=True)]
    )
    monkeypatch.setattr(
        "replicator.engine.graph.invariance.check_trainable", lambda *arguments: None
    )

    with pytest.raises(comparing.DifferenceError, match="drift apart and nothing was"):
        checking.check(program)


def test_a_step_that_tensorflow_refuses_on_one_device_is_no_difference():
    """A loop in a loop that captures a bool, in a tape in a tape."""
    flag = tf.Variable(False, trainable=False)

    @tf.function(autograph=False)
    def step(b):
        def loop(body):
            return tf.while_loop(lambda i, _: i < 2, body, (0, b))[1]

        def inner(i, _):
            flag.assign(tf.reduce_all(b > 0.0))
            return i + 1, b

        with tf.GradientTape() as second:
            second.watch(b)
            with tf.GradientTape() as first:
                first.watch(b)
                loop(lambda i, _: (i + 1, loop(inner)))
            gradient = first.gradient(b, b)
        return second.gradient(gradient, b)

    with pytest.raises(TypeError, match="DataType bool not in list of allowed"):
        step(tf.ones([3]))

    is_positive = written_programs.compute("p", "tf.reduce_all({0} > 0.0)", "b")
    write = syntax.Write(variable="w", method="assign", argument="p")
    body = syntax.Block(statements=(write,), result="b")
    for number in range(2):
        loop = syntax.Loop(
            result=f"l{number}", start="b", times="n", carried=f"c{number}", body=body
        )
        body = syntax.Block(statements=(loop,), result=loop.result)
    for number in range(2):
        tape = syntax.Differentiate(
            results=(f"g{number}",),
            body=dataclasses.replace(body, result="b"),
            watched=("b",),
            sources=("b",),
        )
        body = syntax.Block(statements=(tape,), result=tape.results[0])
    program = written_programs.program(
        [
            is_positive,
            written_programs.compute("n", "tf.cast(tf.reduce_sum({0}), tf.int32)", "b"),
            *body.statements,
        ],
        *tape.results,
        variables=[written_programs.weight(type=syntax.Type("bool"))],
    )

    assert checking.Verdict.REFUSED is checking.check(program)
    assert not structure.has_loops_in_tapes(tape.body.statements)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "mean"),
        ({"aggregation": "ONLY_FIRST_REPLICA"}, "first"),
        ({"aggregation": "SUM", "synchronization": "ON_READ"}, "sum"),
    ],
)
def test_local_variables_read_outside_as_the_documents_say(changes, expected):
    """The mean over replicas, that of replica 0, or the sum; in both ways to run."""
    write = syntax.Write(variable="w", method="assign", argument="b")
    program = written_programs.program(
        [write], variables=[written_programs.weight(**changes)]
    )
    first, second = (batch["b"] for batch in values.make_batches(program)[0])
    wanted = {"mean": (first + second) / 2, "first": first, "sum": first + second}

    seen = engine.run(program)
    interpreted, _ = checking.interpret(program, tf.float64)

    for outside in (seen.outside[0]["w"], interpreted.outside[0]["w"]):
        assert wanted[expected].tolist() == pytest.approx(outside.tolist())


def test_programs_are_as_varied_as_the_grammar():
    """Every kind of statement, placement, number of replicas and feed is drawn."""
    seen = set()

    @settings(
        max_examples=150,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawing.programs())
    def draw(program):
        setting = program.setting
        seen.update([setting.placement, setting.num_replicas, setting.feed])
        for statement in program.statements:
            parts = list(structure.inside(statement))
            seen.update(map(type, parts))
            seen.update(p.kind for p in parts if isinstance(p, syntax.Communicate))

    draw()

    wanted = {*syntax.Statement.__args__, "shared", "mirrored", "separate"}
    assert {*wanted, 1, 2, 3, "values", "iterator", "unknown", "loop"} <= seen
    assert set(collectives.COLLECTIVES) <= seen


def test_the_grammar_has_every_collective_that_users_call():
    """A new one is drawn and interpreted, too."""
    folder = Path(kinds.__file__).parent
    public = {path.stem for path in folder.glob("*.py")} & {*replicator.__all__}

    assert public | {"all_reduce"} == set(collectives.COLLECTIVES)


def test_the_interpreter_does_not_use_the_library():
    """Otherwise both could be wrong in the same way."""
    for module in (
        collectives,
        lockstep,
        transformations,
        variance,
        structure,
        syntax,
    ):
        lines = Path(module.__file__).read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if "import" in line and "replicator" in line]

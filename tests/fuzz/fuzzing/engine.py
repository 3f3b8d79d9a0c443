"""Runs a program by the library, and in lock step, and compares what they give."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
import tensorflow as tf

import replicator
from fuzzing import source, syntax, variance
from fuzzing.lockstep import Lockstep
from replicator import errors

# Rounding of float32 (6e-8 each) over some ten operations and sums of other orders,
# which derivatives up to the third order enlarge. Relative to the largest element.
RTOL = 1e-3
ATOL = 1e-4
# Two right answers of this share of the tolerance apart leave too little to judge by.
ILL_CONDITIONED = 0.1
MAX_MAGNITUDE = 1e6
ASSIGNED_OFFSET = np.int32(100)

_TYPES = {
    syntax.FLOAT: np.float32,
    syntax.INT: np.int32,
    syntax.BOOL: np.bool_,
}


class Verdict(enum.Enum):
    """What came of a program."""

    SAME = "the same"
    REFUSED = "refused by both"
    NOT_JUDGED = "too large, or too sensitive to rounding"


class DifferenceError(AssertionError):
    """The library and the interpreter disagree."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen of a run after each call of ``run``.

    Attributes:
      outputs: By call, replica and output; what the last step of the call returned.
      outside: By call, the variables by name.
    """

    outputs: list[list[list[Any]]]
    outside: list[dict[str, Any]]


def value_of(type_: syntax.Type, rng: np.random.Generator) -> Any:
    """A value of a type: floats of both signs around 1, small integers."""
    if type_.dtype == syntax.FLOAT:
        return rng.uniform(-1.5, 1.5, type_.shape).astype(np.float32)
    if type_.dtype == syntax.INT:
        return rng.integers(0, 5, type_.shape).astype(np.int32)
    return rng.integers(0, 2, type_.shape).astype(np.bool_)


def make_batches(program: syntax.Program) -> list[list[dict[str, Any]]]:
    """Inputs by step and replica."""
    rng = np.random.default_rng(program.setting.seed)
    return [
        [
            {name: value_of(type_, rng) for name, type_ in program.inputs}
            for _ in range(program.setting.num_replicas)
        ]
        for _ in range(program.setting.num_steps)
    ]


def initial_values(program: syntax.Program) -> dict[str, Any]:
    """What variables start from."""
    return {
        v.name: value_of(v.type, np.random.default_rng([1, v.seed]))
        for v in program.variables
    }


def assigned_value(program: syntax.Program) -> Any:
    """What is assigned from outside before the last step."""
    types = {v.name: v.type for v in program.variables}
    rng = np.random.default_rng([2, program.setting.seed])
    # Another value than the variable has: a variable that is assigned what it reads as
    # counts as unchanged, and its copies stay as they are.
    return value_of(types[program.setting.assigned], rng) + ASSIGNED_OFFSET


def check(program: syntax.Program) -> Verdict:
    """Runs a program both ways.

    Raises:
      DifferenceError: They disagree; says about what.
    """
    expected, drifting = interpret(program, tf.float64)
    may_refuse, must_refuse = _refusals(program, drifting)
    try:
        seen = run(program)
    except errors.UnsynchronisedUpdateError as error:
        if may_refuse:
            return Verdict.REFUSED
        raise DifferenceError(f"refused without a reason: {error}") from error
    except Exception as error:
        raise DifferenceError(f"{type(error).__name__}: {error}") from error
    if must_refuse:
        raise DifferenceError(f"{must_refuse} drift apart and nothing was said")
    try:
        compare(expected, seen)
    except DifferenceError:
        # Two right answers may be as far apart: then the interpreter's are, too.
        rounded, _ = interpret(program, tf.float32)
        if _can_judge(expected, rounded):
            raise
        return Verdict.NOT_JUDGED
    return Verdict.SAME


def interpret(program: syntax.Program, dtype: tf.DType) -> tuple[Seen, set[str]]:
    """Runs a program in lock step; also names variables whose copies came to differ."""
    setting = program.setting
    lockstep = Lockstep(program, initial_values(program), dtype)
    outputs, outside, drifting = [], [], set()
    for index, batch in enumerate(make_batches(program)):
        is_last = index == setting.num_steps - 1
        if is_last and setting.assigned:
            lockstep.assign(setting.assigned, assigned_value(program))
        outputs.append(lockstep.step(batch))
        outside.append({v.name: lockstep.outside(v.name) for v in program.variables})
        drifting |= {
            v.name
            for v in program.variables
            if not _is_same(lockstep.copies(v.name), dtype)
        }
    if setting.feed == "loop":
        outputs, outside = outputs[-1:], outside[-1:]
    return Seen(outputs=outputs, outside=outside), drifting


def _is_same(copies: list[Any], dtype: tf.DType) -> bool:
    """Whether copies agree but for rounding."""
    first = np.asarray(copies[0])
    if first.dtype != dtype.as_numpy_dtype:
        return all(np.array_equal(first, other) for other in copies)
    return all(np.allclose(first, other, RTOL, ATOL) for other in copies)


def _can_judge(expected: Seen, rounded: Seen) -> bool:
    """Whether values are of moderate size, and rounding moves them little."""
    for (_, one), (_, other) in zip(leaves(expected), leaves(rounded), strict=True):
        if one.dtype != np.float64:
            if not np.array_equal(one, other):
                return False
            continue
        if not np.all(np.abs(one) < MAX_MAGNITUDE):
            return False
        if not np.all(np.abs(one - other) <= ILL_CONDITIONED * tolerance(one)):
            return False
    return True


def tolerance(expected: Any) -> float:
    """How far a tensor's elements may be from what is expected."""
    return ATOL + RTOL * float(np.max(np.abs(expected), initial=0.0))


def _refusals(program: syntax.Program, drifting: set[str]) -> tuple[set[str], set[str]]:
    """Variables for which the library may, and must, refuse the step."""
    if program.setting.num_replicas == 1:
        return set(), set()
    trained = {
        v.name for v in program.variables if v.trainable and v.synchronization == "AUTO"
    }
    return variance.may_differ(program) & trained, drifting & trained


def make_replicator(setting: syntax.Setting) -> Any:
    """The library's replicator for a setting."""
    count = setting.num_replicas
    if setting.placement == "shared":
        return replicator.create("in_graph", num_replicas=count)
    repl = replicator.create(
        "in_graph",
        num_replicas=count,
        devices=[f"CPU:{index}" for index in range(count)],
        variable_placement="mirrored",
    )
    if setting.placement == "separate":
        memories = tuple(range(count))
        repl._set_topology(dataclasses.replace(repl.topology, memories=memories))
    return repl


def make_variable(variable: syntax.Variable, value: Any) -> tf.Variable:
    """The user's variable."""
    return tf.Variable(
        value,
        trainable=variable.trainable,
        name=variable.name,
        synchronization=tf.VariableSynchronization[variable.synchronization],
        aggregation=tf.VariableAggregation[variable.aggregation],
    )


def run(program: syntax.Program) -> Seen:
    """Runs a program by the library."""
    setting = program.setting
    repl = make_replicator(setting)
    initial = initial_values(program)
    with repl.context():
        variables = {
            v.name: make_variable(v, initial[v.name]) for v in program.variables
        }
    step = source.make_step(program, variables)
    seen = Seen(outputs=[], outside=[])
    steps = _feed(repl, step, program)
    num_calls = 1 if setting.feed == "loop" else setting.num_steps
    for index in range(num_calls):
        if setting.assigned and index == num_calls - 1:
            variables[setting.assigned].assign(assigned_value(program))
        outputs = next(steps)
        seen.outputs.append(
            [[o[r].numpy() for o in outputs] for r in range(setting.num_replicas)]
        )
        seen.outside.append({n: v.numpy() for n, v in variables.items()})
    repl.assert_in_sync()
    return seen


def _feed(repl: Any, step: Any, program: syntax.Program) -> Any:
    """Calls of ``run``, one at a time."""
    setting, batches = program.setting, make_batches(program)
    names = [name for name, _ in program.inputs]
    num_steps = setting.num_steps if setting.feed == "loop" else 1
    num_calls = setting.num_steps // num_steps
    if not names:
        for _ in range(num_calls):
            yield repl.run(step, num_steps=num_steps)
    elif setting.feed == "values":
        for batch in batches:
            yield repl.run(
                step,
                tuple(
                    replicator.PerReplica([tf.constant(b[name]) for b in batch])
                    for name in names
                ),
            )
    else:
        inputs = repl.make_input_iterator(
            lambda ctx: tf.data.Dataset.from_tensor_slices(
                tuple(
                    np.stack([batch[ctx.input_pipeline_id][name] for batch in batches])
                    for name in names
                )
            ),
            replicator.InputReplicationMode.PER_REPLICA,
        )
        for _ in range(num_calls):
            yield repl.run(step, inputs, num_steps=num_steps)


def leaves(seen: Seen) -> list[tuple[str, Any]]:
    """All values with the place that they have in a run."""
    found = []
    for call, (outputs, outside) in enumerate(
        zip(seen.outputs, seen.outside, strict=True)
    ):
        for replica, values in enumerate(outputs):
            found += [
                (f"call {call}, replica {replica}, output {index}", np.asarray(value))
                for index, value in enumerate(values)
            ]
        found += [
            (f"call {call}, variable {name} outside", np.asarray(value))
            for name, value in outside.items()
        ]
    return found


def compare(expected: Seen, seen: Seen) -> None:
    """Raises where a run differs from what is expected.

    Raises:
      DifferenceError: Says where, and shows both.
    """
    for (place, want), (_, got) in zip(leaves(expected), leaves(seen), strict=True):
        is_float = want.dtype == np.float64
        kind = np.dtype(np.float32) if is_float else want.dtype
        if got.dtype != kind or got.shape != want.shape:
            raise DifferenceError(
                f"{place}: {got.dtype}{got.shape} in place of {kind}{want.shape}"
            )
        is_same = (
            np.all(np.abs(want - got) <= tolerance(want))
            if is_float
            else np.array_equal(want, got)
        )
        if not is_same:
            raise DifferenceError(
                f"{place}: {got.tolist()} in place of {want.tolist()}"
            )

"""What goes into a run of a program and what is seen of it, as NumPy arrays."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
from fuzzing import syntax
from fuzzing.syntax import FAILS, UNEVEN

NEW_OFFSET = 100
LARGEST_HALF = 65504.0
MAX_ROWS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    steps: tuple[int, ...]  # The steps that it does, each with its batches.
    fails: int | None = None  # The replica that fails the last of them, or None.


def schedule(program):
    """The calls of a program; with a failure in a loop, that call is the only one."""
    setting = program.setting
    steps = tuple(range(setting.num_steps))
    if setting.feed == "loop":
        if setting.fails is None:
            return [Call(steps=steps)]
        return [Call(steps=steps[: setting.fails[0] + 1], fails=setting.fails[1])]
    calls = []
    for step in steps:
        if setting.fails is not None and setting.fails[0] == step:
            calls.append(Call(steps=(step,), fails=setting.fails[1]))
        calls.append(Call(steps=(step,)))
    return calls


def value_of(type_, rng):
    """A value of a type: floats of both signs around 1, small integers, huge halves."""
    if type_.dtype == syntax.FLOAT:
        return rng.uniform(-1.5, 1.5, type_.shape).astype(np.float32)
    if type_.dtype == syntax.HALF:
        return (rng.uniform(-1, 1, type_.shape) * LARGEST_HALF).astype(np.float16)
    if type_.dtype == syntax.INT:
        return rng.integers(0, 5, type_.shape).astype(np.int32)
    return rng.integers(0, 2, type_.shape).astype(np.bool_)


def make_batches(program):
    """Inputs by step and replica; none of them makes a step fail."""
    setting = program.setting
    rng = np.random.default_rng(setting.seed)
    batches = []
    for _ in range(setting.num_steps):
        num_rows = int(rng.integers(0, MAX_ROWS + 1))
        of_step = []
        for _ in range(setting.num_replicas):
            batch = {name: value_of(type_, rng) for name, type_ in program.inputs}
            if FAILS in batch:
                batch[FAILS] = np.zeros_like(batch[FAILS])
            if UNEVEN in batch:
                own = num_rows if setting.is_even else rng.integers(0, MAX_ROWS + 1)
                batch[UNEVEN] = batch[UNEVEN][: int(own)]
            of_step.append(batch)
        batches.append(of_step)
    return batches


def batches_of(program, call):
    """Inputs of a call, by step and replica, with the one that fails it."""
    batches = make_batches(program)
    found = [[dict(batch) for batch in batches[step]] for step in call.steps]
    if call.fails is not None:
        found[-1][call.fails][FAILS] = np.bool_(True)
    return found


def initial_value(variable):
    return value_of(variable.type, np.random.default_rng([1, variable.seed]))


def recovered_value(program, variable, failed):
    """What a variable of each replica is assigned after a call that failed."""
    if program.setting.recovers == "same" and variable.name in failed:
        return failed[variable.name]
    return initial_value(variable)


def outside_value(program, write, now):
    """What a write from outside assigns, or adds; the variable reads as ``now``."""
    variable = {v.name: v for v in program.variables}[write.variable]
    if write.kind == "reset":
        return initial_value(variable)
    if write.kind == "same":
        return now
    value = value_of(
        variable.type, np.random.default_rng([2, program.setting.seed, write.step])
    )
    is_number = variable.type.dtype in (syntax.FLOAT, syntax.INT)
    offset = NEW_OFFSET if is_number and write.kind == "new" else 0
    return value + value.dtype.type(offset) if offset else value


def has_uneven_join(program):
    """Whether a step joins values whose shapes differ between replicas."""
    joins = any(
        isinstance(part, syntax.Uneven) and part.form in syntax.JOINS
        for statement in program.statements
        for part in syntax.inside(statement)
    )
    steps = {step for call in schedule(program) for step in call.steps}
    return joins and any(
        len({len(batch[UNEVEN]) for batch in of_step}) > 1
        for step, of_step in enumerate(make_batches(program))
        if step in steps
    )


# Rounding of float32 (6e-8 each) over some ten operations and sums of other orders,
# which derivatives up to the third order enlarge. Relative to the largest element.
RTOL = 1e-3
ATOL = 1e-4
# Rounding of float16 (5e-4 each), twice.
RTOL_OF_HALVES = 2e-3
# Two right answers of this share of the tolerance apart leave too little to judge by.
ILL_CONDITIONED = 0.1
MAX_MAGNITUDE = 1e6


class Verdict(enum.Enum):
    """What came of a program."""

    SAME = "the same"
    REFUSED = "refused by both"
    NOT_JUDGED = "too large, or too sensitive to rounding"


class DifferenceError(AssertionError):
    """The library and the interpreter disagree."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen of a run after each call of ``run``."""

    # By call, replica and output; what the last step of the call returned.
    outputs: list[list[list[Any]]] = dataclasses.field(default_factory=list)
    # By call and floating output, its mean over replicas by ``reduce``.
    means: list[list[Any]] = dataclasses.field(default_factory=list)
    # By call, the variables by name.
    outside: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # The variables by name after the call that failed, if one did.
    failed: dict[str, Any] = dataclasses.field(default_factory=dict)


def leaves(seen):
    found = []
    for call, (outputs, means, outside) in enumerate(
        zip(seen.outputs, seen.means, seen.outside, strict=True)
    ):
        for replica, values in enumerate(outputs):
            found += [
                (f"call {call}, replica {replica}, output {index}", np.asarray(value))
                for index, value in enumerate(values)
            ]
        found += [
            (f"call {call}, mean {index} over replicas", np.asarray(value))
            for index, value in enumerate(means)
        ]
        found += [
            (f"call {call}, variable {name} outside", np.asarray(value))
            for name, value in outside.items()
        ]
    return found


def compare(expected, seen):
    for (place, want), (_, got) in zip(leaves(expected), leaves(seen), strict=True):
        kind = np.dtype(np.float32) if want.dtype == np.float64 else want.dtype
        if got.dtype != kind or got.shape != want.shape:
            raise DifferenceError(
                f"{place}: {got.dtype}{got.shape} in place of {kind}{want.shape}"
            )
        if not is_close(want, got):
            raise DifferenceError(
                f"{place}: {got.tolist()} in place of {want.tolist()}"
            )


def is_close(want, got):
    """Whether a value is what is expected, but for rounding if it is a float."""
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype.kind != "f":
        return np.array_equal(want, got)
    return bool(np.all(np.abs(want - got.astype(np.float64)) <= tolerance(want)))


def tolerance(expected):
    relative = RTOL_OF_HALVES if expected.dtype == np.float16 else RTOL
    return ATOL + relative * float(np.max(np.abs(expected), initial=0.0))


def can_judge(expected, rounded):
    """Whether values are of moderate size, and rounding moves them little."""
    for (_, one), (_, other) in zip(leaves(expected), leaves(rounded), strict=True):
        if one.dtype == np.float16:
            if not is_close(one, other):
                return False
            continue
        if one.dtype != np.float64:
            if not np.array_equal(one, other):
                return False
            continue
        if not np.all(np.abs(one) < MAX_MAGNITUDE):
            return False
        if not np.all(np.abs(one - other) <= ILL_CONDITIONED * tolerance(one)):
            return False
    return True

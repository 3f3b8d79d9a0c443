"""Runs a program by the library, and in lock step, and says whether they agree."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np
import tensorflow as tf

from fuzzing import engine, structure, syntax, values, variance
from fuzzing.comparing import (
    ATOL,
    RTOL,
    DifferenceError,
    Seen,
    can_judge,
    compare,
    is_close,
)
from fuzzing.lockstep import Lockstep
from replicator import errors


class Verdict(enum.Enum):
    """What came of a program."""

    SAME = "the same"
    REFUSED = "refused by both"
    NOT_JUDGED = "too large, or too sensitive to rounding"


def check(program, repl=None):
    seen, error = Seen(), None
    try:
        seen = engine.run(program, repl)
    except DifferenceError:
        raise
    except Exception as caught:  # noqa: BLE001 - whatever it is, it is judged below
        error = caught
    expected, drifting = interpret(program, tf.float64, seen.failed)
    may_refuse, must_refuse = _refusals(program, drifting)
    if isinstance(error, errors.UnsynchronisedUpdateError) and may_refuse:
        return Verdict.REFUSED
    is_uneven = values.has_uneven_join(program)
    if error is not None:
        if (is_uneven and _names_shapes(error)) or _is_of_tensorflow(program, error):
            return Verdict.REFUSED
        raise DifferenceError(f"{type(error).__name__}: {error}") from error
    if must_refuse:
        raise DifferenceError(f"{must_refuse} drift apart and nothing was said")
    if is_uneven:
        return _uneven(program)
    try:
        compare(_seen_by(repl, expected), seen)
    except DifferenceError:
        # Two right answers may be as far apart: then the interpreter's are, too.
        rounded, _ = interpret(program, tf.float32, seen.failed)
        if can_judge(expected, rounded):
            raise
        return Verdict.NOT_JUDGED
    return Verdict.SAME


def _seen_by(repl, expected):
    if repl is None:
        return expected
    own = engine.local_replicas(repl)
    outputs = [[call[r] for r in own] for call in expected.outputs]
    return dataclasses.replace(expected, outputs=outputs)


def _uneven(program):
    """A join that nothing needs is not carried out, and nobody looks at it.

    Of a call that fails, the drawn failure may come first.
    """
    all_fail = all(call.fails is not None for call in values.schedule(program))
    if not all_fail and any(
        isinstance(s, syntax.Uneven)
        and s.form in syntax.JOINS
        and s.result in program.outputs
        for s in program.statements
    ):
        raise DifferenceError("values of different shapes were joined")
    return Verdict.NOT_JUDGED


def _names_shapes(error):
    """Whether an error is about shapes that differ between replicas."""
    known = (errors.ReplicatorError, tf.errors.InvalidArgumentError)
    return isinstance(error, known) and "shape" in str(error)


def _is_of_tensorflow(program, error):
    """Whether TensorFlow refuses the step on one device as well.

    It adds the gradients of what a loop in a loop captures where two tapes record it,
    even of a bool, for which it has no sum.
    """
    return (
        isinstance(error, TypeError)
        and "DataType bool not in list of allowed values" in str(error)
        and structure.has_loops_in_tapes(program.statements)
    )


def interpret(program, dtype, failed=None):
    """Runs a program in lock step; also names variables whose copies came to differ."""
    setting = program.setting
    initial = {v.name: values.initial_value(v) for v in program.variables}
    lockstep = Lockstep(program, initial, dtype)
    seen = Seen()
    drifting = set()
    written = set()
    for call in values.schedule(program):
        for write in setting.outside:
            if write.step == call.steps[0] and write not in written:
                written.add(write)
                _write(program, lockstep, write)
        lockstep.history = {name: [] for name in initial}
        for name in initial:
            lockstep.note(name)
        for batches in values.batches_of(program, call):
            outputs = lockstep.step(batches)
            drifting |= {
                name for name in initial if not _is_same(lockstep.copies(name), dtype)
            }
        if call.fails is not None:
            _go_on(program, lockstep, failed or {})
            continue
        seen.outputs.append(outputs)
        seen.means.append([mean(column) for column in _floats(outputs)])
        seen.outside.append({name: lockstep.outside(name) for name in initial})
    return seen, drifting


def _write(program, lockstep, write):
    now = lockstep.outside(write.variable)
    value = values.outside_value(program, write, now)
    lockstep.assign(write.variable, now + value if write.kind == "add" else value)


def _go_on(program, lockstep, failed):
    """Takes the state after a failed call over; what may differ begins anew."""
    reset = variance.may_differ(program)
    for variable in program.variables:
        name = variable.name
        if name in reset:
            value = values.recovered_value(program, variable, failed)
            lockstep.assign(name, value)
        elif name in failed:
            possible = lockstep.history[name]
            if not any(is_close(value, failed[name]) for value in possible):
                raise DifferenceError(
                    f"after the failure, variable {name} outside: "
                    f"{failed[name].tolist()} in place of one of "
                    f"{[value.tolist() for value in possible]}"
                )
            lockstep.assign(name, failed[name])


def _floats(outputs):
    columns = [list(column) for column in zip(*outputs, strict=True)]
    return [column for column in columns if np.asarray(column[0]).dtype.kind == "f"]


def mean(column):
    wide = np.mean([np.asarray(value, np.float64) for value in column], axis=0)
    return np.asarray(wide, np.asarray(column[0]).dtype)


def _is_same(copies, dtype):
    """Whether copies agree but for rounding."""
    first = np.asarray(copies[0])
    if first.dtype != dtype.as_numpy_dtype:
        return all(np.array_equal(first, other) for other in copies)
    return all(np.allclose(first, other, RTOL, ATOL) for other in copies)


def _refusals(program, drifting):
    """Variables for which the library may, and must, refuse the step."""
    if program.setting.num_replicas == 1:
        return set(), set()
    trained = {
        v.name for v in program.variables if v.trainable and v.synchronization == "AUTO"
    }
    return variance.may_differ(program) & trained, drifting & trained

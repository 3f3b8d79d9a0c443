"""Judges programs, and draws a series of them; the first difference is made small."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from fuzzing import drawing, engine, syntax, training_runs, trainings
from fuzzing.lockstep import Lockstep, may_differ
from fuzzing.syntax import (
    ATOL,
    RTOL,
    DifferenceError,
    Seen,
    Verdict,
    can_judge,
    compare,
    is_close,
)
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

import replicator


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
    if isinstance(error, replicator.UnsynchronisedUpdateError) and may_refuse:
        return Verdict.REFUSED
    is_uneven = syntax.has_uneven_join(program)
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
    all_fail = all(call.fails is not None for call in syntax.schedule(program))
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
    known = (replicator.ReplicatorError, tf.errors.InvalidArgumentError)
    return isinstance(error, known) and "shape" in str(error)


def _is_of_tensorflow(program, error):
    """Whether TensorFlow refuses the step on one device as well.

    It adds the gradients of what a loop in a loop captures where two tapes record it,
    even of a bool, for which it has no sum.
    """
    return (
        isinstance(error, TypeError)
        and "DataType bool not in list of allowed values" in str(error)
        and syntax.has_loops_in_tapes(program.statements)
    )


def interpret(program, dtype, failed=None):
    """Runs a program in lock step; also names variables whose copies came to differ."""
    setting = program.setting
    initial = {v.name: syntax.initial_value(v) for v in program.variables}
    lockstep = Lockstep(program, initial, dtype)
    seen = Seen()
    drifting = set()
    written = set()
    for call in syntax.schedule(program):
        for write in setting.outside:
            if write.step == call.steps[0] and write not in written:
                written.add(write)
                _write(program, lockstep, write)
        lockstep.history = {name: [] for name in initial}
        for name in initial:
            lockstep.note(name)
        for batches in syntax.batches_of(program, call):
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
    value = syntax.outside_value(program, write, now)
    lockstep.assign(write.variable, now + value if write.kind == "add" else value)


def _go_on(program, lockstep, failed):
    """Takes the state after a failed call over; what may differ begins anew."""
    reset = may_differ(program)
    for variable in program.variables:
        name = variable.name
        if name in reset:
            value = syntax.recovered_value(program, variable, failed)
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
    return may_differ(program) & trained, drifting & trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grammar:
    """What programs are drawn from, and how each is judged."""

    programs: Callable[[Collection[str]], Any]  # Draws programs of some features.
    features: tuple[str, ...]  # All that it has.
    check: Callable[[Any], Verdict]  # Runs a program both ways.
    render: Callable[[Any], str]  # Shows a program.


STEPS = Grammar(
    programs=drawing.programs,
    features=drawing.FEATURES,
    check=check,
    render=engine.render,
)
TRAININGS = Grammar(
    programs=trainings.trainings,
    features=trainings.FEATURES,
    check=training_runs.check,
    render=training_runs.render,
)


@dataclasses.dataclass(kw_only=True)
class Series:
    # How many programs ended how, up to the first difference of each seed.
    verdicts: collections.Counter[Verdict] = dataclasses.field(
        default_factory=collections.Counter
    )
    # Small programs on which the library and the interpreter disagree, as Python, with
    # what they disagree about.
    differences: list[str] = dataclasses.field(default_factory=list)

    def add(self, other):
        self.verdicts.update(other.verdicts)
        self.differences += other.differences

    def __str__(self):
        counts = [f"{self.verdicts[v]} {v.value}" for v in Verdict]
        num_drawn = self.verdicts.total() + len(self.differences)
        return (
            f"{num_drawn} programs drawn: {', '.join(counts)}; "
            f"{len(self.differences)} found a difference"
        )


def run_series(
    first_seed, num_programs, *, grammar=STEPS, is_shrunk=True, features=None
):
    """Draws programs and compares the library with the interpreter on each."""
    found = Series()
    last = []

    @seed(first_seed)
    @settings(
        max_examples=num_programs,
        derandomize=False,
        database=None,
        deadline=None,
        print_blob=False,
        phases=[Phase.generate, *([Phase.shrink] if is_shrunk else [])],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(grammar.programs(grammar.features if features is None else features))
    def check(program):
        try:
            verdict = grammar.check(program)
        except syntax.DifferenceError as error:
            # Hypothesis runs the smallest one last.
            last.append((program, error))
            raise
        if not last:
            found.verdicts[verdict] += 1

    try:
        check()
    except (syntax.DifferenceError, Flaky) as error:
        program, difference = last[-1]
        often = ", not every time" if isinstance(error, Flaky) else ""
        number = found.verdicts.total() + 1
        found.differences.append(
            f"seed {first_seed}, program {number}{often}: {difference}\n"
            f"{grammar.render(program)}\n"
        )
    return found


# On a cluster of two workers, against the interpreter.
NUM_REPLICAS = 4  # two in each
# A step that fails, or finds that shapes differ, ends a job of several processes.
ENDS_A_JOB = {"failures", "uneven"}


def set_up(folder, *, seed, num_programs):
    del folder
    return seed, num_programs


def multi_worker_in_graph(seed, num_programs):
    """Programs of which two processes run the replicas, in one graph."""
    repl = replicator.create("multi_worker_in_graph", num_replicas=NUM_REPLICAS)
    return _check_all(repl, seed, num_programs, drawing.FEATURES)


def multi_worker(seed, num_programs):
    """Programs that every worker draws, and runs its part of."""
    repl = replicator.create("multi_worker", num_replicas=NUM_REPLICAS)
    features = [name for name in drawing.FEATURES if name not in ENDS_A_JOB]
    return _check_all(repl, seed, num_programs, features)


def _check_all(repl, seed, num_programs, features):
    """Goes on after a difference, which other workers may not see."""
    differences = []

    def note(program):
        try:
            return check(program, repl)
        except DifferenceError as difference:
            differences.append(f"{difference}\n{STEPS.render(program)}")
            return Verdict.NOT_JUDGED

    grammar = dataclasses.replace(
        STEPS,
        programs=functools.partial(drawing.programs, nums_replicas=(NUM_REPLICAS,)),
        check=note,
    )
    found = run_series(
        seed, num_programs, grammar=grammar, is_shrunk=False, features=features
    )
    verdicts = {verdict.value: n for verdict, n in found.verdicts.items()}
    return [verdicts, differences]


CASES = {
    "multi_worker": multi_worker,
    "multi_worker_in_graph": multi_worker_in_graph,
}
# By backend, the processes that draw programs; the others serve.
RUNNERS = {
    "multi_worker": [("worker", 0), ("worker", 1)],
    "multi_worker_in_graph": [("worker", 0)],
}


def run_on_workers(backend, folder, seed, num_programs):
    """By process that draws, how many programs ended how, and the differences."""
    import case_cluster

    ran = case_cluster.ran(
        __name__,
        folder,
        path=Path(__file__).resolve().parents[1],
        cases=[backend],
        options={"seed": seed, "num_programs": num_programs},
        runners=RUNNERS[backend],
        num_workers=2,
        num_cpu_devices=2,
    )
    return ran.values(backend)

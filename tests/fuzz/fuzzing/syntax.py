"""Step functions as data, and the arrays that go into a run and are seen of it.

A program is a list of statements over named values, each assigned once. Nested blocks
see the values of the blocks around them.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np

FLOAT, INT, BOOL, HALF = "float", "int", "bool", "half"
UNEVEN = "u"  # the input that is of different length on each replica
FAILS = "f"  # the input that says whether the step fails
FAILURE = "the drawn failure"


@dataclasses.dataclass(frozen=True)
class Type:
    """What is known of a value: ``float``, ``int``, ``bool`` or ``half``; its shape."""

    dtype: str
    shape: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable that is made before the step."""

    name: str  # In the printed program.
    type: Type  # Of its value.
    seed: int  # Of its initial value.
    trainable: bool  # As ``tf.Variable`` takes it.
    synchronization: str = "AUTO"  # ``AUTO``, or ``ON_READ`` for one value per replica.
    # ``NONE``, ``SUM`` or ``ONLY_FIRST_REPLICA``: how it reads outside.
    aggregation: str = "NONE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compute:
    """``result = template`` with the names of the arguments filled in."""

    result: str
    template: str
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaId:
    """``result = replicator.get_replica_context().replica_id``."""

    result: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communicate:
    """A collective on a nest."""

    results: tuple[str, ...]  # One name per argument.
    # Names of operands; one collective communicates all of them.
    arguments: tuple[str, ...]
    kind: str  # Which one of ``operations.COLLECTIVES``.
    # Its second argument, such as the reduction; None for no argument.
    parameter: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """``result = variable.read_value()``, or by the handle alone."""

    result: str
    variable: str
    # Whether by ``tf.raw_ops``, of which TensorFlow keeps no record.
    is_raw: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """``variable.method(argument)``: ``assign``, ``assign_add`` or ``assign_sub``."""

    variable: str
    method: str
    argument: str
    # ``method``; ``unread``, with ``read_value=False``; or ``raw``, by ``tf.raw_ops``
    # and the variable's handle.
    form: str = "method"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Statements and the name of the value that they end in."""

    statements: tuple[Statement, ...]
    result: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differentiate:
    """A ``tf.GradientTape`` over a block, whose values stay visible after it."""

    # One gradient per source; zeros where a source has no part in the target.
    results: tuple[str, ...]
    body: Block  # What the tape records; its result is the target.
    watched: tuple[str, ...]  # Values from before the tape that it watches.
    sources: tuple[str, ...]  # Names of values or of trainable variables.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """``result = tf.cond(predicate, then, orelse)``."""

    result: str
    predicate: str
    then: Block
    orelse: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """``tf.while_loop`` that carries one value through ``times % 3`` rounds."""

    result: str  # What was carried, at the end.
    start: str  # What it starts from.
    times: str  # An integer value.
    carried: str  # Its name in the body.
    body: Block  # Ends in a value of the same type.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A nested ``tf.function`` of one argument; it closes over what else it uses."""

    result: str
    argument: str
    parameter: str
    body: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Map:
    """``map_reduce(work, items, op)``, or ``map_gather(items, work)`` with no op."""

    results: tuple[str, ...]  # One name; of a ``map_gather`` one per item.
    items: tuple[str, ...]  # Names of values of one type.
    parameter: str  # The item's name in the body.
    body: Block  # Work on one item, without effects.
    shape: tuple[int, ...] = ()  # Of what it gives.
    op: str = ""  # Of a ``map_reduce``, else empty.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push:
    """A ``tf.autodiff.ForwardAccumulator``: the change of the body's result."""

    result: str  # The change, of the type of the body's result.
    source: str  # A value that the accumulator follows.
    tangent: str  # Its change: another value of the same type.
    body: Block  # What is followed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jacobian:
    """``tape.jacobian`` of the body's result by one source."""

    result: str
    source: str
    body: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectorize:
    """``tf.vectorized_map`` over the rows of a value."""

    result: str  # The stacked results.
    argument: str  # Its rows are mapped.
    parameter: str  # A row's name in the body.
    body: Block  # What becomes of a row.
    shape: tuple[int, ...]  # Of the result.
    num_unknown: int = 0  # Of how many axes no length is known while tracing.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fail:
    """``result = argument``, behind an assertion that fails if input ``f`` is set."""

    result: str  # What comes behind the assertion.
    argument: str  # Its value.
    # Whether the assertion waits for a loop, so that others are ahead.
    is_late: bool = False


# Forms of ``Uneven`` that join the values themselves.
JOINS = ("sum", "mean", "min", "max", "gather")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uneven:
    """A number from the input ``u``, of which replicas may have different lengths."""

    result: str  # A floating-point number.
    # ``own`` is the own sum, ``examples`` is ``mean_over_examples``; the others are
    # sums of what a collective gives, which is refused where lengths differ.
    form: str


Statement = (
    Compute
    | ReplicaId
    | Communicate
    | Read
    | Write
    | Differentiate
    | Branch
    | Loop
    | Call
    | Map
    | Push
    | Jacobian
    | Vectorize
    | Fail
    | Uneven
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outside:
    """What the user does to a variable between two steps."""

    step: int  # Before which step.
    variable: str  # Its name.
    # ``new`` assigns another value, ``same`` the value that it reads as, ``reset`` the
    # one that it began with, ``add`` adds a number.
    kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How a program is run."""

    # ``shared`` (one device), ``mirrored`` (a device and copies of variables for each
    # replica) or ``separate`` (the same, with memories apart as on GPUs).
    placement: str
    num_replicas: int  # R.
    num_steps: int  # Steps in all.
    # ``values`` (a ``PerReplica`` per step), ``iterator`` (one step per call),
    # ``unknown`` (the same, with shapes that are not known while tracing) or ``loop``
    # (all steps in one call).
    feed: str
    seed: int  # Of inputs.
    outside: tuple[Outside, ...] = ()  # What is written between steps, in order.
    # The step before which one more fails, and the replica that fails it.
    fails: tuple[int, int] | None = None
    # ``reset`` or ``same``: then assigned to what replicas keep themselves.
    recovers: str = "reset"
    is_even: bool = True  # Whether all replicas have as many rows of ``u``.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A step function, its variables and inputs, and how it is run."""

    inputs: tuple[tuple[str, Type], ...]  # Name and type of each value of a batch.
    variables: tuple[Variable, ...]  # Made before the step.
    statements: tuple[Statement, ...]  # The step.
    outputs: tuple[str, ...]  # Names of values that the step returns.
    setting: Setting  # How it is run.


# Fields of statements that name values which they read, one or several.
_READS = (
    *("argument", "arguments", "items", "predicate", "source", "sources"),
    *("start", "tangent", "times", "watched"),
)


def _named_blocks(statement):
    return {k: v for k, v in vars(statement).items() if isinstance(v, Block)}


def blocks(statement):
    return list(_named_blocks(statement).values())


def inside(statement):
    yield statement
    for block in blocks(statement):
        for inner in block.statements:
            yield from inside(inner)


def used(statement):
    """Names of values that a statement reads, those of its blocks included."""
    names = set()
    for part in inside(statement):
        names |= {block.result for block in blocks(part)}
        names |= _arguments(part)
    return names


def written(statement):
    return {part.variable for part in inside(statement) if isinstance(part, Write)}


def read(statement):
    return {part.variable for part in inside(statement) if isinstance(part, Read)}


def followed(statement):
    """Names of variables that a tape around a statement hears of.

    It does so where TensorFlow reads them by their names: ``assign`` returns a value.
    """
    return {
        part.variable
        for part in inside(statement)
        if (isinstance(part, Read) and not part.is_raw)
        or (isinstance(part, Write) and part.form == "method")
    }


def has_effect(statement):
    return any(isinstance(part, (Write, Fail)) for part in inside(statement))


def has_loops_in_tapes(statements, num_loops=0, num_tapes=0):
    """Whether a loop in a loop stands in a tape in a tape."""
    for statement in statements:
        loops = num_loops + isinstance(statement, Loop)
        tapes = num_tapes + isinstance(statement, Differentiate)
        if (loops >= 2 and tapes >= 2) or any(
            has_loops_in_tapes(block.statements, loops, tapes)
            for block in blocks(statement)
        ):
            return True
    return False


def _arguments(statement):
    names = {"u"} if isinstance(statement, Uneven) else set()
    for field in _READS:
        value = getattr(statement, field, ())
        names |= {value} if isinstance(value, str) else set(value)
    return names


def results(statement):
    if isinstance(statement, Write):
        return ()
    return statement.results if hasattr(statement, "results") else (statement.result,)


def without_dead(statements, wanted):
    """Leaves out what has no effect and nobody uses, inside blocks too."""
    kept = []
    wanted = set(wanted)
    for statement in reversed(statements):
        lean = _with_lean_blocks(statement, wanted)
        defined = {name for part in _visible(lean) for name in results(part)}
        if not defined & wanted and not has_effect(lean):
            continue
        kept.append(lean)
        wanted |= used(lean)
    return tuple(reversed(kept))


def _visible(statement):
    """A statement, and those in tapes, whose values are seen afterwards."""
    yield statement
    if isinstance(statement, Differentiate):
        for inner in statement.body.statements:
            yield from _visible(inner)


def _with_lean_blocks(statement, wanted):
    def lean(block, *more):
        needed = {block.result, *more}
        return Block(
            statements=without_dead(block.statements, needed), result=block.result
        )

    more = ()
    if isinstance(statement, Differentiate):  # its values are seen afterwards
        more = (*wanted, *statement.sources)
    lean_blocks = {k: lean(v, *more) for k, v in _named_blocks(statement).items()}
    return dataclasses.replace(statement, **lean_blocks)


# What goes into a run of a program, and what is seen of it.
NEW_OFFSET = 100
LARGEST_HALF = 65504.0
MAX_ROWS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCall:
    steps: tuple[int, ...]  # The steps that it does, each with its batches.
    fails: int | None = None  # The replica that fails the last of them, or None.


def schedule(program):
    """The calls of a program; with a failure in a loop, that call is the only one."""
    setting = program.setting
    steps = tuple(range(setting.num_steps))
    if setting.feed == "loop":
        if setting.fails is None:
            return [RunCall(steps=steps)]
        return [RunCall(steps=steps[: setting.fails[0] + 1], fails=setting.fails[1])]
    calls = []
    for step in steps:
        if setting.fails is not None and setting.fails[0] == step:
            calls.append(RunCall(steps=(step,), fails=setting.fails[1]))
        calls.append(RunCall(steps=(step,)))
    return calls


def value_of(type_, rng):
    """A value of a type: floats of both signs around 1, small integers, huge halves."""
    if type_.dtype == FLOAT:
        return rng.uniform(-1.5, 1.5, type_.shape).astype(np.float32)
    if type_.dtype == HALF:
        return (rng.uniform(-1, 1, type_.shape) * LARGEST_HALF).astype(np.float16)
    if type_.dtype == INT:
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
    is_number = variable.type.dtype in (FLOAT, INT)
    offset = NEW_OFFSET if is_number and write.kind == "new" else 0
    return value + value.dtype.type(offset) if offset else value


def has_uneven_join(program):
    """Whether a step joins values whose shapes differ between replicas."""
    joins = any(
        isinstance(part, Uneven) and part.form in JOINS
        for statement in program.statements
        for part in inside(statement)
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

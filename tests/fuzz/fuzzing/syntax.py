"""Step functions as data: what is drawn, printed as Python, and interpreted.

A program is a list of statements over named values, each assigned once. Names are those
of the printed Python; nested blocks see the values of the blocks around them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FLOAT, INT, BOOL = "float", "int", "bool"


@dataclasses.dataclass(frozen=True)
class Type:
    """What is known of a value: ``float``, ``int`` or ``bool``, and its shape."""

    dtype: str
    shape: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable that is made before the step.

    Attributes:
      name: In the printed program.
      type: Of its value.
      seed: Of its initial value.
      trainable: As ``tf.Variable`` takes it.
      synchronization: ``AUTO``, or ``ON_READ`` for one value per replica.
      aggregation: ``NONE``, ``SUM`` or ``ONLY_FIRST_REPLICA``: how it reads outside.
    """

    name: str
    type: Type
    seed: int
    trainable: bool
    synchronization: str = "AUTO"
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
    """A collective on a nest: ``all_reduce``, ``all_gather`` or ``broadcast``.

    Attributes:
      results: One name per argument.
      arguments: Names of operands; one collective communicates all of them.
      kind: Which collective.
      op: Of an ``all_reduce``.
      source: Of a ``broadcast``.
    """

    results: tuple[str, ...]
    arguments: tuple[str, ...]
    kind: str
    op: str = ""
    source: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """``result = variable.read_value()``."""

    result: str
    variable: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """``variable.method(argument)``: ``assign``, ``assign_add`` or ``assign_sub``."""

    variable: str
    method: str
    argument: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Statements and the name of the value that they end in."""

    statements: tuple[Statement, ...]
    result: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differentiate:
    """A ``tf.GradientTape`` over a block, whose values stay visible after it.

    Attributes:
      results: One gradient per source; zeros where a source has no part in the target.
      body: What the tape records; its result is the target.
      watched: Values from before the tape that it watches.
      sources: Names of values or of trainable variables.
    """

    results: tuple[str, ...]
    body: Block
    watched: tuple[str, ...]
    sources: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """``result = tf.cond(predicate, then, orelse)``."""

    result: str
    predicate: str
    then: Block
    orelse: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """``tf.while_loop`` that carries one value through ``times % 3`` rounds.

    Attributes:
      result: What was carried, at the end.
      start: What it starts from.
      times: An integer value.
      carried: Its name in the body.
      body: Ends in a value of the same type.
    """

    result: str
    start: str
    times: str
    carried: str
    body: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A nested ``tf.function`` of one argument; it closes over what else it uses."""

    result: str
    argument: str
    parameter: str
    body: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Map:
    """``map_reduce(work, items, op)``, or ``map_gather(items, work)`` with no op.

    Attributes:
      results: One name; of a ``map_gather`` one per item.
      items: Names of values of one type.
      parameter: The item's name in the body.
      body: Work on one item, without effects.
      op: Of a ``map_reduce``, else empty.
    """

    results: tuple[str, ...]
    items: tuple[str, ...]
    parameter: str
    body: Block
    op: str = ""


Statement: TypeAlias = (
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
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How a program is run.

    Attributes:
      placement: ``shared`` (one device), ``mirrored`` (a device and copies of variables
        for each replica) or ``separate`` (the same, with memories apart as on GPUs).
      num_replicas: R.
      num_steps: Steps in all.
      feed: ``values`` (a ``PerReplica`` per step), ``iterator`` (one step per call) or
        ``loop`` (all steps in one call).
      seed: Of inputs.
      assigned: Variable that is assigned from outside before the last step, or empty.
    """

    placement: str
    num_replicas: int
    num_steps: int
    feed: str
    seed: int
    assigned: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A step function, its variables and inputs, and how it is run.

    Attributes:
      inputs: Name and type of each value of a batch.
      variables: Made before the step.
      statements: The step.
      outputs: Names of values that the step returns.
      setting: How it is run.
    """

    inputs: tuple[tuple[str, Type], ...]
    variables: tuple[Variable, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    setting: Setting


def blocks(statement: Statement) -> list[Block]:
    """The blocks inside a statement."""
    if isinstance(statement, Branch):
        return [statement.then, statement.orelse]
    if isinstance(statement, (Differentiate, Loop, Call, Map)):
        return [statement.body]
    return []


def inside(statement: Statement) -> Iterator[Statement]:
    """A statement and all that stand in its blocks."""
    yield statement
    for block in blocks(statement):
        for inner in block.statements:
            yield from inside(inner)


def used(statement: Statement) -> set[str]:
    """Names of values that a statement reads, those of its blocks included."""
    names: set[str] = set()
    for part in inside(statement):
        names |= {block.result for block in blocks(part)}
        names |= _arguments(part)
    return names


def written(statement: Statement) -> set[str]:
    """Names of variables that a statement writes, in its blocks too."""
    return {part.variable for part in inside(statement) if isinstance(part, Write)}


def read(statement: Statement) -> set[str]:
    """Names of variables whose values a statement reads, in its blocks too."""
    return {part.variable for part in inside(statement) if isinstance(part, Read)}


def _arguments(  # noqa: PLR0911 - a line for each kind of statement
    statement: Statement,
) -> set[str]:
    match statement:
        case Compute(arguments=arguments) | Communicate(arguments=arguments):
            return set(arguments)
        case Write(argument=argument) | Call(argument=argument):
            return {argument}
        case Differentiate(watched=watched, sources=sources):
            return {*watched, *sources}
        case Branch(predicate=predicate):
            return {predicate}
        case Loop(start=start, times=times):
            return {start, times}
        case Map(items=items):
            return set(items)
    return set()


def results(statement: Statement) -> tuple[str, ...]:
    """Names of the values that a statement defines, those in a tape excepted."""
    if isinstance(statement, (Communicate, Differentiate, Map)):
        return statement.results
    return () if isinstance(statement, Write) else (statement.result,)


def without_dead(
    statements: Sequence[Statement], wanted: set[str]
) -> tuple[Statement, ...]:
    """Leaves out what has no effect and nobody uses, inside blocks too.

    Args:
      statements: In order.
      wanted: Names of values that are used behind them.
    """
    kept: list[Statement] = []
    wanted = set(wanted)
    for statement in reversed(statements):
        lean = _with_lean_blocks(statement, wanted)
        defined = {name for part in _visible(lean) for name in results(part)}
        if not defined & wanted and not written(lean):
            continue
        kept.append(lean)
        wanted |= used(lean)
    return tuple(reversed(kept))


def _visible(statement: Statement) -> Iterator[Statement]:
    """A statement, and those in tapes, whose values are seen afterwards."""
    yield statement
    if isinstance(statement, Differentiate):
        for inner in statement.body.statements:
            yield from _visible(inner)


def _with_lean_blocks(statement: Statement, wanted: set[str]) -> Statement:
    def lean(block: Block, *more: str) -> Block:
        needed = {block.result, *more}
        return Block(
            statements=without_dead(block.statements, needed), result=block.result
        )

    if isinstance(statement, Branch):
        return dataclasses.replace(
            statement, then=lean(statement.then), orelse=lean(statement.orelse)
        )
    if isinstance(statement, Differentiate):
        return dataclasses.replace(
            statement, body=lean(statement.body, *wanted, *statement.sources)
        )
    if isinstance(statement, (Loop, Call, Map)):
        return dataclasses.replace(statement, body=lean(statement.body))
    return statement

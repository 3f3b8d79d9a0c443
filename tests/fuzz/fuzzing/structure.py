"""What programs are made of: blocks, names that are used, and what is dead."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fuzzing.syntax import (
    Block,
    Branch,
    Call,
    Communicate,
    Compute,
    Differentiate,
    Fail,
    Jacobian,
    Loop,
    Map,
    Push,
    Read,
    Statement,
    Uneven,
    Vectorize,
    Write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WITH_BODY = (Differentiate, Loop, Call, Map, Push, Jacobian, Vectorize)


def blocks(statement: Statement) -> list[Block]:
    if isinstance(statement, Branch):
        return [statement.then, statement.orelse]
    if isinstance(statement, _WITH_BODY):
        return [statement.body]
    return []


def inside(statement: Statement) -> Iterator[Statement]:
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
    return {part.variable for part in inside(statement) if isinstance(part, Write)}


def read(statement: Statement) -> set[str]:
    return {part.variable for part in inside(statement) if isinstance(part, Read)}


def followed(statement: Statement) -> set[str]:
    """Names of variables that a tape around a statement hears of.

    It does so where TensorFlow reads them by their names: ``assign`` returns a value.
    """
    return {
        part.variable
        for part in inside(statement)
        if (isinstance(part, Read) and not part.is_raw)
        or (isinstance(part, Write) and part.form == "method")
    }


def has_effect(statement: Statement) -> bool:
    return any(isinstance(part, (Write, Fail)) for part in inside(statement))


def has_loops_in_tapes(
    statements: Sequence[Statement], num_loops: int = 0, num_tapes: int = 0
) -> bool:
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


def _arguments(  # noqa: PLR0911 - a line for each kind of statement
    statement: Statement,
) -> set[str]:
    match statement:
        case Compute(arguments=arguments) | Communicate(arguments=arguments):
            return set(arguments)
        case (
            Write(argument=argument)
            | Call(argument=argument)
            | Vectorize(argument=argument)
            | Fail(argument=argument)
        ):
            return {argument}
        case Push(source=source, tangent=tangent):
            return {source, tangent}
        case Jacobian(source=source):
            return {source}
        case Differentiate(watched=watched, sources=sources):
            return {*watched, *sources}
        case Branch(predicate=predicate):
            return {predicate}
        case Loop(start=start, times=times):
            return {start, times}
        case Map(items=items):
            return set(items)
        case Uneven():
            return {"u"}
    return set()


def results(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, (Communicate, Differentiate, Map)):
        return statement.results
    return () if isinstance(statement, Write) else (statement.result,)


def without_dead(
    statements: Sequence[Statement], wanted: set[str]
) -> tuple[Statement, ...]:
    """Leaves out what has no effect and nobody uses, inside blocks too."""
    kept: list[Statement] = []
    wanted = set(wanted)
    for statement in reversed(statements):
        lean = _with_lean_blocks(statement, wanted)
        defined = {name for part in _visible(lean) for name in results(part)}
        if not defined & wanted and not has_effect(lean):
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
    if isinstance(statement, _WITH_BODY):
        return dataclasses.replace(statement, body=lean(statement.body))
    return statement

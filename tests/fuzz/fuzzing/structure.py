"""What programs are made of: blocks, names that are used, and what is dead."""

from __future__ import annotations

import dataclasses

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
    Uneven,
    Vectorize,
    Write,
)

_WITH_BODY = (Differentiate, Loop, Call, Map, Push, Jacobian, Vectorize)


def blocks(statement):
    if isinstance(statement, Branch):
        return [statement.then, statement.orelse]
    if isinstance(statement, _WITH_BODY):
        return [statement.body]
    return []


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


def _arguments(statement):  # noqa: PLR0911 - a line for each kind of statement
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


def results(statement):
    if isinstance(statement, (Communicate, Differentiate, Map)):
        return statement.results
    return () if isinstance(statement, Write) else (statement.result,)


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

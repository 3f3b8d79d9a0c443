"""What programs are made of: blocks, names that are used, and what is dead."""

from __future__ import annotations

import dataclasses

from fuzzing.syntax import Block, Differentiate, Fail, Loop, Read, Uneven, Write

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

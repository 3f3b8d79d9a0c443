"""What every part of the grammar draws with: scopes, names, values, operations."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from fuzzing import syntax
from fuzzing.collectives import COLLECTIVES
from fuzzing.operations import HALVES, OPERATIONS, PLAIN_OPERATIONS
from fuzzing.syntax import FLOAT, Block, Type

MAX_INNER = 3
# What a series may be drawn without, to look behind a known difference.
FEATURES = ("failures", "halves", "handles", "outside", "uneven", "unknown")


@dataclasses.dataclass
class Scope:
    """What a place in the program can use."""

    values: list[tuple[str, Type]]  # Names and types, oldest first.
    may_communicate: bool = True  # Whether collectives can stand here.
    may_write: bool = True  # Whether variables can be written here.
    is_plain: bool = False  # Whether only operations and collectives stand here.
    num_tapes: int = 0  # Tapes around it.
    watched: tuple[tuple[str, Type], ...] = ()  # Values that the tapes around it watch.
    depth: int = 0  # Blocks around it.

    def inner(self, **changes):
        """The scope of a block: what it defines is not seen outside."""
        return dataclasses.replace(
            self, values=list(self.values), depth=self.depth + 1, **changes
        )


class Choices:
    def __init__(self, draw, features=FEATURES):
        self._draw = draw
        self.features = features
        self._num_names = 0
        self.variables = []

    def choose(self, options):
        """One of some options; shrinks to the first."""
        return self._draw(st.sampled_from(options))

    def also(self, feature, *options):
        """Options that are there with a feature."""
        return list(options) if feature in self.features else []

    def number(self, low, high):
        """An integer; shrinks to the lowest."""
        return self._draw(st.integers(low, high))

    def name(self):
        self._num_names += 1
        return f"v{self._num_names}"

    def pick(self, scope, fits):
        """A value that fits; those that were made last more often than others.

        Inputs are in every scope: a value of each of their types, and so of every type
        of a variable, is there.
        """
        found = [value for value in scope.values if fits(value[1])]
        return self.choose([*found, *found[-3:], found[-1]]) if found else None

    def pick_float(self, scope):
        return self.pick(scope, lambda t: t.dtype == FLOAT)

    def block(self, scope, result, least=0):
        """Statements that end in a value that fits, the last one mostly."""
        statements = self.statements(scope, self.number(least, MAX_INNER))
        found = self.pick(scope, result)
        if self.number(0, 2):
            found = next((v for v in reversed(scope.values) if result(v[1])), None)
        return found and Block(statements=statements, result=found[0])

    def statements(self, scope, count):
        """Up to so many statements; what they define is in the scope afterwards."""
        drawn = []
        for _ in range(count):
            kind = self.choose(self.kinds(scope))
            statement = kind(scope)
            if statement is not None:
                drawn += statement if isinstance(statement, list) else [statement]
        return tuple(drawn)

    def compute(self, scope):
        operations = PLAIN_OPERATIONS if scope.is_plain else OPERATIONS
        if "halves" in self.features and not scope.is_plain:
            operations = (*operations, *HALVES)
        operation = self.choose(operations)
        first = self.pick(
            scope,
            lambda t: t.dtype == operation.takes and operation.fits(t.shape),
        )
        if first is None:
            return None
        arguments = [first[0]]
        for types in operation.others(first[1].shape):
            other = self.pick(scope, lambda t, types=types: t in types)
            if other is None:
                return None
            arguments.append(other[0])
        return self.operate(
            scope, operation.template, arguments, operation.gives(first[1].shape)
        )

    def operate(self, scope, template, arguments, type_):
        """An operation of named arguments, as many as its template has places for."""
        num_used = 1 + max(i for i in range(len(arguments)) if f"{{{i}}}" in template)
        return syntax.Compute(
            result=self.define(scope, type_),
            template=template,
            arguments=tuple(arguments[:num_used]),
        )

    def define(self, scope, type_):
        name = self.name()
        scope.values.append((name, type_))
        return name

    def join(self, scope, kind, parameter, values):
        """A collective of named values."""
        gives, count = COLLECTIVES[kind].gives, self.num_replicas
        return syntax.Communicate(
            results=tuple(self.define(scope, gives(t, count)) for _, t in values),
            arguments=tuple(name for name, _ in values),
            kind=kind,
            parameter=parameter,
        )

    def can_join(self, kind, parameter):
        return lambda t: COLLECTIVES[kind].takes(t, parameter, self.num_replicas)

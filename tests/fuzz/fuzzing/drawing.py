"""Draws programs: every choice is Hypothesis', so that what fails shrinks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from fuzzing import syntax
from fuzzing.operations import MAX_RANK, MAX_SIZE, OPERATIONS
from fuzzing.syntax import BOOL, FLOAT, INT, Block, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INPUTS = (
    ("a", Type(FLOAT)),
    ("b", Type(FLOAT, (3,))),
    ("c", Type(FLOAT, (2, 3))),
    ("n", Type(INT)),
    ("m", Type(INT, (3,))),
    ("p", Type(BOOL)),
    ("q", Type(BOOL, (3,))),
)
VARIABLE_TYPES = (
    Type(FLOAT, (3,)),
    Type(FLOAT),
    Type(FLOAT, (2, 3)),
    Type(INT),
    Type(INT, (3,)),
    Type(BOOL),
)
MAX_STATEMENTS = 12
MAX_INNER = 3
MAX_TAPES = 3  # inside one another: derivatives of third order
MAX_REPLICAS = 3

# Constructs that are not drawn, each for a known difference until it is mended.
HIGHER_ORDER = "collectives in a tape inside a tape"
WRITE_IN_FLOW = "writes in a branch or loop"
EXCLUDED: frozenset[str] = frozenset()


@dataclasses.dataclass
class _Scope:
    """What a place in the program can use.

    Attributes:
      values: Names and types, oldest first.
      may_communicate: Whether collectives can stand here.
      may_write: Whether variables can be written here.
      num_tapes: Tapes around it.
      watched: Values that the tapes around it watch.
      depth: Blocks around it.
    """

    values: list[tuple[str, Type]]
    may_communicate: bool = True
    may_write: bool = True
    num_tapes: int = 0
    watched: tuple[tuple[str, Type], ...] = ()
    depth: int = 0

    def inner(self, **changes: Any) -> _Scope:
        """The scope of a block: what it defines is not seen outside."""
        return dataclasses.replace(
            self, values=list(self.values), depth=self.depth + 1, **changes
        )


class _Drawer:
    """Draws one program, statement by statement."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw
        self._num_names = 0
        self.variables: list[syntax.Variable] = []

    def choose(self, options: Sequence[Any]) -> Any:
        """One of some options; shrinks to the first."""
        return self._draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        """An integer; shrinks to the lowest."""
        return self._draw(st.integers(low, high))

    def name(self) -> str:
        """A new name of a value."""
        self._num_names += 1
        return f"v{self._num_names}"

    def pick(
        self, scope: _Scope, fits: Callable[[Type], bool]
    ) -> tuple[str, Type] | None:
        """A value that fits; those that were made last more often than others."""
        found = [value for value in scope.values if fits(value[1])]
        if not found:
            return None
        return self.choose([*found, *found[-3:], found[-1]])

    def block(
        self, scope: _Scope, result: Callable[[Type], bool], least: int = 0
    ) -> Block | None:
        """Statements that end in a value that fits, the last one mostly."""
        statements = self.statements(scope, self.number(least, MAX_INNER))
        found = self.pick(scope, result)
        if self.number(0, 2):
            found = next((v for v in reversed(scope.values) if result(v[1])), None)
        return found and Block(statements=statements, result=found[0])

    def statements(self, scope: _Scope, count: int) -> tuple[syntax.Statement, ...]:
        """Up to so many statements; what they define is in the scope afterwards."""
        drawn: list[syntax.Statement] = []
        for _ in range(count):
            kind = self.choose(self._kinds(scope))
            statement = kind(self, scope)
            if statement is not None:
                drawn.append(statement)
        return tuple(drawn)

    def _kinds(self, scope: _Scope) -> list[Any]:
        kinds = [_Drawer.compute] * 7 + [_Drawer.replica_id]
        if self.variables:
            kinds += [_Drawer.read] * 2
            kinds += [_Drawer.write] * 2 if scope.may_write else []
        if scope.may_communicate:
            kinds += [_Drawer.communicate] * (8 if scope.num_tapes else 4)
        if scope.num_tapes < MAX_TAPES and scope.depth <= MAX_TAPES:
            kinds += [_Drawer.differentiate] * (6 if scope.num_tapes else 3)
            kinds += [_Drawer.tower] * 2
        if scope.depth <= 1 + scope.num_tapes:
            kinds += [_Drawer.branch, _Drawer.loop, _Drawer.call]
            if scope.may_communicate:
                kinds += [_Drawer.map]
        return kinds

    def compute(self, scope: _Scope) -> syntax.Statement | None:
        """One operation of TensorFlow."""
        operation = self.choose(OPERATIONS)
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
        return self._compute(
            scope, operation.template, arguments, operation.gives(first[1].shape)
        )

    def _compute(
        self, scope: _Scope, template: str, arguments: Sequence[str], type_: Type
    ) -> syntax.Statement:
        num_used = 1 + max(i for i in range(len(arguments)) if f"{{{i}}}" in template)
        return syntax.Compute(
            result=self.define(scope, type_),
            template=template,
            arguments=tuple(arguments[:num_used]),
        )

    def define(self, scope: _Scope, type_: Type) -> str:
        """A new value in a scope."""
        name = self.name()
        scope.values.append((name, type_))
        return name

    def replica_id(self, scope: _Scope) -> syntax.Statement:
        """The id of the replica."""
        return syntax.ReplicaId(result=self.define(scope, Type(INT)))

    def communicate(self, scope: _Scope) -> syntax.Statement | None:
        """A collective on one to three values."""
        kind = self.choose(["all_reduce"] * 4 + ["all_gather", "broadcast"])
        op = ""
        if kind == "all_reduce":
            op = self.choose(["sum", "mean", "min", "max"])
        picked = []
        for _ in range(self.number(1, 3)):
            value = self.pick(scope, lambda t: _can_communicate(t, kind, op))
            if value is not None:
                picked.append(value)
        if not picked:
            return None
        stack = (self.num_replicas,) if kind == "all_gather" else ()
        return syntax.Communicate(
            results=tuple(
                self.define(scope, Type(t.dtype, (*stack, *t.shape))) for _, t in picked
            ),
            arguments=tuple(name for name, _ in picked),
            kind=kind,
            op=op,
            source=self.number(0, self.num_replicas - 1) if kind == "broadcast" else 0,
        )

    def read(self, scope: _Scope) -> syntax.Statement:
        """The value of a variable."""
        variable = self.choose(self.variables)
        return syntax.Read(
            result=self.define(scope, variable.type), variable=variable.name
        )

    def write(self, scope: _Scope) -> syntax.Statement | None:
        """An assignment to a variable."""
        variable = self.choose(self.variables)
        value = self.pick(scope, lambda t: t == variable.type)
        is_number = variable.type.dtype != BOOL
        methods = ["assign_add", "assign", "assign_sub"] if is_number else ["assign"]
        return value and syntax.Write(
            variable=variable.name, method=self.choose(methods), argument=value[0]
        )

    def differentiate(self, scope: _Scope) -> syntax.Statement | None:
        """A tape over a few statements."""
        # Sources are watched by the tape: whether TensorFlow follows a value that no
        # tape watches (zeros, say) differs between graphs and eager execution.
        watched = self._watched(scope)
        inner = self._recorded(scope, watched)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
        if body is None:
            return None
        sources = [
            *watched,
            *(
                (v.name, v.type)
                for v in self.variables
                if v.trainable and v.type.dtype == FLOAT and self.number(0, 1)
            ),
        ]
        return syntax.Differentiate(
            results=tuple(self.define(scope, type_) for _, type_ in sources),
            body=body,
            watched=tuple(dict.fromkeys(name for name, _ in watched)),
            sources=tuple(name for name, _ in sources),
        )

    def _recorded(self, scope: _Scope, watched: Sequence[tuple[str, Type]]) -> _Scope:
        """The scope of what a tape records.

        Shares the list of values: what the tape's body defines is seen after it.
        """
        is_excluded = HIGHER_ORDER in EXCLUDED and scope.num_tapes > 0
        return dataclasses.replace(
            scope,
            may_communicate=scope.may_communicate and not is_excluded,
            num_tapes=scope.num_tapes + 1,
            watched=(*scope.watched, *watched),
            depth=scope.depth + 1,
        )

    def tower(self, scope: _Scope) -> syntax.Statement | None:
        """Tapes inside one another whose targets do depend on their sources.

        A gradient penalty is of this form. Tapes that are drawn freely seldom are: most
        derivatives of second order are zero.
        """
        source = self.pick(scope, lambda t: t.dtype == FLOAT)
        num_tapes = self.number(1, MAX_TAPES - scope.num_tapes)
        return source and self._tower(scope, source, num_tapes)

    def _tower(
        self, scope: _Scope, source: tuple[str, Type], num_tapes: int
    ) -> syntax.Statement:
        inner = self._recorded(scope, [source])
        statements: list[syntax.Statement] = []
        value = source
        if num_tapes > 1:
            statements.append(self._tower(inner, source, num_tapes - 1))
            value = (statements[-1].results[0], source[1])
        for _ in range(self.number(1, 2)):
            if inner.may_communicate and self.number(0, 2):
                value, drawn = self._joined(inner, value)
                statements.append(drawn)
            value, drawn = self._bent(inner, value)
            statements.append(drawn)
        body = Block(statements=tuple(statements), result=value[0])
        return syntax.Differentiate(
            results=(self.define(scope, source[1]),),
            body=body,
            watched=(source[0],),
            sources=(source[0],),
        )

    def _bent(
        self, scope: _Scope, value: tuple[str, Type]
    ) -> tuple[tuple[str, Type], syntax.Statement]:
        """A nonlinear operation of a value, with another one perhaps."""
        other = self.pick(scope, lambda t: t == value[1]) or value
        template = self.choose(["tf.square({0})", "{0} * {1}", "tf.sin({0})"])
        statement = self._compute(scope, template, [value[0], other[0]], value[1])
        return (statement.result, value[1]), statement

    def _joined(
        self, scope: _Scope, value: tuple[str, Type]
    ) -> tuple[tuple[str, Type], syntax.Statement]:
        """A collective of a value."""
        kind = self.choose(["sum", "mean", "max", "min", "broadcast", "all_gather"])
        if kind == "all_gather" and not _can_communicate(value[1], kind, ""):
            kind = "sum"
        is_reduction = kind not in ("broadcast", "all_gather")
        stack = (self.num_replicas,) if kind == "all_gather" else ()
        type_ = Type(FLOAT, (*stack, *value[1].shape))
        name = self.define(scope, type_)
        return (name, type_), syntax.Communicate(
            results=(name,),
            arguments=(value[0],),
            kind="all_reduce" if is_reduction else kind,
            op=kind if is_reduction else "",
            source=self.number(0, self.num_replicas - 1) if kind == "broadcast" else 0,
        )

    def _watched(self, scope: _Scope) -> list[tuple[str, Type]]:
        """What a tape watches: often what the tapes around it watch, too."""
        found = [
            self.choose(scope.watched)
            if scope.watched and self.number(0, 2)
            else self.pick(scope, lambda t: t.dtype == FLOAT)
            for _ in range(self.number(1, 2))
        ]
        return list(dict.fromkeys(value for value in found if value is not None))

    def branch(self, scope: _Scope) -> syntax.Statement | None:
        """A ``tf.cond`` of two blocks that end in values of one type."""
        predicate = self.pick(scope, lambda t: t == Type(BOOL))
        wanted = self.pick(scope, lambda t: t.dtype == FLOAT)
        if predicate is None or wanted is None:
            return None
        then = self.block(self._flow(scope), lambda t: t == wanted[1])
        orelse = self.block(self._flow(scope), lambda t: t == wanted[1])
        assert then, "the wanted type is in the scope"
        assert orelse, "the wanted type is in the scope"
        return syntax.Branch(
            result=self.define(scope, wanted[1]),
            predicate=predicate[0],
            then=then,
            orelse=orelse,
        )

    def loop(self, scope: _Scope) -> syntax.Statement | None:
        """A ``tf.while_loop`` of a few rounds."""
        start = self.pick(scope, lambda t: t.dtype == FLOAT)
        times = self.pick(scope, lambda t: t == Type(INT))
        if start is None or times is None:
            return None
        inner = self._flow(scope)
        carried = self.define(inner, start[1])
        body = self.block(inner, lambda t: t == start[1])
        assert body, "the carried value is in the scope"
        return syntax.Loop(
            result=self.define(scope, start[1]),
            start=start[0],
            times=times[0],
            carried=carried,
            body=body,
        )

    def call(self, scope: _Scope) -> syntax.Statement | None:
        """A nested ``tf.function``."""
        argument = self.pick(scope, lambda t: t.dtype == FLOAT)
        if argument is None:
            return None
        inner = self._closed(scope)
        parameter = self.define(inner, argument[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        assert body, "the parameter is in the scope"
        types = dict(inner.values)
        return syntax.Call(
            result=self.define(scope, types[body.result]),
            argument=argument[0],
            parameter=parameter,
            body=body,
        )

    def map(self, scope: _Scope) -> syntax.Statement | None:
        """Work items dealt over replicas."""
        first = self.pick(scope, lambda t: t.dtype == FLOAT)
        if first is None:
            return None
        items = [first[0]]
        for _ in range(self.number(0, 4)):
            item = self.pick(scope, lambda t: t == first[1])
            assert item, "the first is in the scope"
            items.append(item[0])
        inner = dataclasses.replace(self._closed(scope), may_write=False)
        parameter = self.define(inner, first[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        assert body, "the parameter is in the scope"
        type_ = dict(inner.values)[body.result]
        op = self.choose(["sum", "mean", "min", "max", ""])
        return syntax.Map(
            results=tuple(
                self.define(scope, type_) for _ in range(1 if op else len(items))
            ),
            items=tuple(items),
            parameter=parameter,
            body=body,
            op=op,
        )

    def _flow(self, scope: _Scope) -> _Scope:
        """The scope of a branch or loop."""
        inner = self._closed(scope)
        inner.may_write &= WRITE_IN_FLOW not in EXCLUDED
        return inner

    def _closed(self, scope: _Scope) -> _Scope:
        """The scope of a branch, loop or function: collectives cannot stand there."""
        return scope.inner(may_communicate=False)

    def variable(self, index: int) -> syntax.Variable:
        """A variable, with the flags that a user may set."""
        type_ = self.choose(VARIABLE_TYPES)
        synchronization = self.choose(["AUTO", "AUTO", "ON_READ"])
        # Where copies are not declared to differ, a prover decides how a sum begins.
        aggregations = ["NONE", "NONE", "ONLY_FIRST_REPLICA"]
        if synchronization == "ON_READ":
            aggregations.append("SUM")
        return syntax.Variable(
            name=f"w{index}",
            type=type_,
            seed=self.number(0, 9),
            trainable=type_.dtype == FLOAT and self.choose([True, False]),
            synchronization=synchronization,
            aggregation=self.choose(aggregations),
        )

    def setting(self) -> syntax.Setting:
        """How the program is run."""
        num_steps = self.number(1, 3)
        feed = self.choose(["values", "values", "iterator", "loop"])
        names = [v.name for v in self.variables if v.type.dtype != BOOL]
        is_assigned = num_steps > 1 and feed != "loop" and names and self.number(0, 1)
        return syntax.Setting(
            placement=self.choose(["shared", "mirrored", "separate"]),
            num_replicas=self.num_replicas,
            num_steps=num_steps,
            feed=feed,
            seed=self.number(0, 99),
            assigned=self.choose(names) if is_assigned else "",
        )

    def program(self) -> syntax.Program:
        """The whole of it."""
        self.num_replicas = self.choose([2, 3, 1])
        self.variables = [self.variable(i) for i in range(self.number(0, 3))]
        scope = _Scope(values=list(INPUTS))
        statements = self.statements(scope, self.number(1, MAX_STATEMENTS))
        used = set().union(*map(syntax.used, statements))
        defined = [name for name, _ in scope.values[len(INPUTS) :]]
        # Whatever nothing else uses: at this level nothing is dead.
        outputs = tuple(name for name in defined if name not in used)
        statements = syntax.without_dead(statements, set(outputs))
        used = set().union(*map(syntax.used, statements))
        return syntax.Program(
            inputs=tuple(value for value in INPUTS if value[0] in used),
            variables=tuple(self.variables),
            statements=statements,
            outputs=outputs,
            setting=self.setting(),
        )


def _can_communicate(type_: Type, kind: str, op: str) -> bool:
    if kind == "all_gather":
        size = 1
        for length in type_.shape:
            size *= length
        return len(type_.shape) < MAX_RANK and size * MAX_REPLICAS <= MAX_SIZE
    if kind == "broadcast":
        return True
    return {
        "sum": type_.dtype != BOOL,
        "mean": type_.dtype == FLOAT,
        "min": True,
        "max": True,
    }[op]


@st.composite
def programs(draw: Callable[..., Any]) -> syntax.Program:
    """Programs of any kind that the grammar knows."""
    return _Drawer(draw).program()

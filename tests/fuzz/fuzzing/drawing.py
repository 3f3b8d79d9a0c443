"""Draws programs: every choice is Hypothesis', so that what fails shrinks."""

from __future__ import annotations

import dataclasses

from fuzzing import syntax
from fuzzing.operations import (
    COLLECTIVES,
    HALVES,
    MAX_RANK,
    MAX_SIZE,
    OPERATIONS,
    PLAIN_OPERATIONS,
    size,
)
from fuzzing.syntax import BOOL, FLOAT, HALF, INT, Block, Type
from hypothesis import strategies as st

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


MAX_TAPES = 3  # inside one another: derivatives of third order
MAX_JACOBIAN = 36  # elements


INPUTS = (
    ("a", Type(FLOAT)),
    ("b", Type(FLOAT, (3,))),
    ("c", Type(FLOAT, (2, 3))),
    ("n", Type(INT)),
    ("m", Type(INT, (3,))),
    ("p", Type(BOOL)),
    ("q", Type(BOOL, (3,))),
)
HALF_INPUT = ("h", Type(HALF, (3,)))
# What no operation uses as it is.
SPECIAL_INPUTS = ((syntax.FAILS, Type(BOOL)), (syntax.UNEVEN, Type(FLOAT, (3,))))
VARIABLE_TYPES = (
    Type(FLOAT, (3,)),
    Type(FLOAT),
    Type(FLOAT, (2, 3)),
    Type(INT),
    Type(INT, (3,)),
    Type(BOOL),
)
MAX_STATEMENTS = 12


class Drawer(Choices):
    def __init__(self, draw, features, nums_replicas):
        super().__init__(draw, features)
        self._nums_replicas = nums_replicas

    def kinds(self, scope):
        """The kinds of statement that can stand somewhere, those wanted more often."""
        kinds = [self.compute] * 7
        if scope.may_communicate:
            kinds += [self.communicate] * (8 if scope.num_tapes else 4)
        if scope.is_plain:
            return kinds
        kinds += [self.replica_id]
        if self.variables:
            kinds += [self.read] * 2
            kinds += [self.write] * 2 if scope.may_write else []
        if scope.depth == 0:
            may_fail = self.variables and not self._fails
            kinds += self.also("failures", self.fail) if may_fail else []
            kinds += self.also("uneven", self.uneven)
        if scope.num_tapes < MAX_TAPES and scope.depth <= MAX_TAPES:
            kinds += [self.differentiate] * (6 if scope.num_tapes else 3)
            kinds += [self.nested_tapes] * 2
            kinds += [self.push]
        if scope.depth <= 1 + scope.num_tapes:
            kinds += [self.branch, self.loop, self.call]
            # Outside of branches: TensorFlow itself fails to vectorize some of those.
            at_top = [self.map, self.vectorize, self.jacobian]
            at_top += self.also("unknown", self.vectorize)
            kinds += at_top if scope.may_communicate else []
        return kinds

    def replica_id(self, scope):
        return syntax.ReplicaId(result=self.define(scope, Type(INT)))

    def communicate(self, scope):
        kind = self.choose(["all_reduce"] * len(COLLECTIVES) + list(COLLECTIVES)[1:])
        parameter = self.choose(COLLECTIVES[kind].parameters(self.num_replicas))
        picked = []
        for _ in range(self.number(1, 3)):
            value = self.pick(scope, self.can_join(kind, parameter))
            if value is not None:
                picked.append(value)
        return self.join(scope, kind, parameter, picked) if picked else None

    def fail(self, scope):
        """A value that comes only where the step does not fail, and its write mostly.

        What replicas have joined is what they would all write, but one of them fails.
        """
        variable = self.choose(self.variables)
        value = self.pick(scope, lambda t: t == variable.type)
        self._fails = True
        drawn = []
        op = "min" if variable.type.dtype == BOOL else self.choose(["mean", "max"])
        if self.can_join("all_reduce", op)(value[1]) and self.number(0, 2):
            drawn.append(self.join(scope, "all_reduce", op, [value]))
            value = scope.values[-1]
        fail = syntax.Fail(
            result=self.define(scope, value[1]),
            argument=value[0],
            is_late=self.choose([False, True]),
        )
        drawn.append(fail)
        if self.number(0, 3):
            drawn.append(
                syntax.Write(
                    variable=variable.name, method="assign", argument=fail.result
                )
            )
        return drawn

    def keep(self, scope):
        """Reads what a replica keeps for itself, and adds to it, as a metric does."""
        self._kept = syntax.Variable(
            name=f"w{len(self.variables)}",
            type=self.choose([t for t in VARIABLE_TYPES if t.dtype != BOOL]),
            seed=self.number(0, 9),
            trainable=False,
            synchronization="ON_READ",
            aggregation=self.choose(["NONE", "ONLY_FIRST_REPLICA", "SUM"]),
        )
        self.variables.append(self._kept)
        name, type_ = self._kept.name, self._kept.type
        value = self.pick(scope, lambda t: t == type_)
        return [
            syntax.Read(result=self.define(scope, type_), variable=name),
            syntax.Write(variable=name, method="assign_add", argument=value[0]),
        ]

    def uneven(self, scope):
        """A number from values whose lengths may differ."""
        self._is_uneven = True
        return syntax.Uneven(
            result=self.define(scope, Type(FLOAT)),
            form=self.choose(["own", "examples", "examples", *syntax.JOINS]),
        )

    def read(self, scope):
        variable = self.choose(self.variables)
        return syntax.Read(
            result=self.define(scope, variable.type),
            variable=variable.name,
            is_raw=self.choose([False, False, *self.also("handles", True)]),
        )

    def write(self, scope):
        variable = self.choose(self.variables)
        value = self.pick(scope, lambda t: t == variable.type)
        is_number = variable.type.dtype in (FLOAT, INT)
        methods = ["assign_add", "assign", "assign_sub"] if is_number else ["assign"]
        return syntax.Write(
            variable=variable.name,
            method=self.choose(methods),
            argument=value[0],
            form=self.choose(["method", *self.also("handles", "unread", "raw")]),
        )

    def variable(self, index):
        type_ = self.choose([*VARIABLE_TYPES, *self.also("halves", Type(HALF, (3,)))])
        synchronization = self.choose(["AUTO", "AUTO", "ON_READ"])
        # Where copies are not declared to differ, a prover decides how a sum begins.
        aggregations = ["NONE", "NONE", "ONLY_FIRST_REPLICA"]
        if synchronization == "ON_READ" and type_.dtype != HALF:
            aggregations.append("SUM")
        return syntax.Variable(
            name=f"w{index}",
            type=type_,
            seed=self.number(0, 9),
            trainable=type_.dtype == FLOAT and self.choose([True, False]),
            synchronization=synchronization,
            aggregation=self.choose(aggregations),
        )

    def setting(self):
        num_steps = self.number(2 if self._kept else 1, 3)
        feeds = ["iterator", "loop", *self.also("unknown", "unknown")]
        feed = self.choose(feeds if self._is_uneven else ["values", "values", *feeds])
        fails, recovers = None, "reset"
        if self._fails:
            fails = self.number(0, num_steps - 1), self.number(0, self.num_replicas - 1)
            recovers = self.choose(["reset", *self.also("outside", "same")])
        writes = [self.outside(num_steps, feed) for _ in range(self.number(0, 3))]
        if self._kept and feed != "loop":
            # Of a new epoch, whose first step may fail.
            step = fails[0] if fails else self.number(1, num_steps - 1)
            kind = self.choose(["reset", "same"])
            reset = syntax.Outside(step=step, variable=self._kept.name, kind=kind)
            writes.append(reset)
        return syntax.Setting(
            placement=self.choose(["shared", "mirrored", "separate"]),
            num_replicas=self.num_replicas,
            num_steps=num_steps,
            feed=feed,
            seed=self.number(0, 99),
            outside=tuple(filter(None, writes)),
            fails=fails,
            recovers=recovers,
            is_even=self.choose([True, False]) if self._is_uneven else True,
        )

    def outside(self, num_steps, feed):
        if not self.variables:
            return None
        variable = self.choose(self.variables)
        kinds = self.also("outside", "same", "reset")
        kinds += ["new", "add"] if variable.type.dtype in (FLOAT, INT) else []
        return kinds and syntax.Outside(
            step=0 if feed == "loop" else self.number(0, num_steps - 1),
            variable=variable.name,
            kind=self.choose(kinds),
        )

    def program(self):
        self.num_replicas = self.choose(self._nums_replicas)
        self._fails = self._is_uneven = False
        self._kept = None
        self.variables = [self.variable(i) for i in range(self.number(0, 3))]
        inputs = [*INPUTS, *self.also("halves", HALF_INPUT)]
        scope = Scope(values=list(inputs))
        is_kept = self.choose([False, *self.also("outside", True)])
        statements = tuple(self.keep(scope)) if is_kept else ()
        statements += self.statements(scope, self.number(1, MAX_STATEMENTS))
        used = set().union(*map(syntax.used, statements))
        defined = [name for name, _ in scope.values[len(inputs) :]]
        # Whatever nothing else uses: at this level nothing is dead.
        outputs = tuple(name for name in defined if name not in used)
        statements = syntax.without_dead(statements, set(outputs))
        used = set().union(*map(syntax.used, statements))
        parts = [p for statement in statements for p in syntax.inside(statement)]
        self._fails = any(isinstance(p, syntax.Fail) for p in parts)
        self._is_uneven = syntax.UNEVEN in used
        used |= {syntax.FAILS} if self._fails else set()
        return syntax.Program(
            inputs=tuple(
                value for value in (*inputs, *SPECIAL_INPUTS) if value[0] in used
            ),
            variables=tuple(self.variables),
            statements=statements,
            outputs=outputs,
            setting=self.setting(),
        )

    def branch(self, scope):
        """A ``tf.cond`` of two blocks that end in values of one type."""
        predicate = self.pick(scope, lambda t: t == Type(BOOL))
        wanted = self.pick_float(scope)
        then = self.block(self._closed(scope), lambda t: t == wanted[1])
        orelse = self.block(self._closed(scope), lambda t: t == wanted[1])
        return syntax.Branch(
            result=self.define(scope, wanted[1]),
            predicate=predicate[0],
            then=then,
            orelse=orelse,
        )

    def loop(self, scope):
        """A ``tf.while_loop`` of a few rounds."""
        start = self.pick_float(scope)
        times = self.pick(scope, lambda t: t == Type(INT))
        inner = self._closed(scope)
        carried = self.define(inner, start[1])
        body = self.block(inner, lambda t: t == start[1])
        return syntax.Loop(
            result=self.define(scope, start[1]),
            start=start[0],
            times=times[0],
            carried=carried,
            body=body,
        )

    def call(self, scope):
        argument = self.pick_float(scope)
        inner = self._closed(scope)
        parameter = self.define(inner, argument[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        types = dict(inner.values)
        return syntax.Call(
            result=self.define(scope, types[body.result]),
            argument=argument[0],
            parameter=parameter,
            body=body,
        )

    def map(self, scope):
        """Work items dealt over replicas."""
        first = self.pick_float(scope)
        others = [
            self.pick(scope, lambda t: t == first[1]) for _ in range(self.number(0, 4))
        ]
        items = [name for name, _ in (first, *others)]
        inner = dataclasses.replace(self._closed(scope), may_write=False)
        parameter = self.define(inner, first[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        type_ = dict(inner.values)[body.result]
        op = self.choose(["sum", "mean", "min", "max", ""])
        return syntax.Map(
            results=tuple(
                self.define(scope, type_) for _ in range(1 if op else len(items))
            ),
            items=tuple(items),
            parameter=parameter,
            body=body,
            shape=type_.shape,
            op=op,
        )

    def _closed(self, scope):
        """The scope of a branch, loop or function: collectives cannot stand there."""
        return scope.inner(may_communicate=False)

    def vectorize(self, scope):
        """A vectorized map over rows, with collectives in it perhaps."""
        argument = self.pick(scope, lambda t: t.dtype == FLOAT and bool(t.shape))
        count, *shape = argument[1].shape
        inner = scope.inner(is_plain=True, may_write=False)
        parameter = self.define(inner, Type(FLOAT, tuple(shape)))

        def fits(type_):
            is_small = size(type_.shape) * count <= MAX_SIZE
            return type_.dtype == FLOAT and len(type_.shape) < MAX_RANK and is_small

        same = self.pick(scope, fits) if self.number(0, 2) else None
        first = self._joined_once(inner, parameter, same) if same else []
        body = self.block(inner, fits, least=0 if first else 1)
        statements, value = [*first, *body.statements], body.result
        type_ = dict(inner.values)[value]
        if first:
            both, template = [value, first[-1].results[0]], "{0} + tf.reduce_sum({1})"
            statements.append(self.operate(inner, template, both, type_))
            value = statements[-1].result
        body = Block(statements=tuple(statements), result=value)
        # A join of something sized is another one where no length is known.
        least = 1 + len(shape) if len(first) > 1 else 1
        result = Type(FLOAT, (count, *type_.shape))
        return syntax.Vectorize(
            result=self.define(scope, result),
            argument=argument[0],
            parameter=parameter,
            body=body,
            shape=result.shape,
            num_unknown=self.choose([0, *self.also("unknown", least, 1 + len(shape))]),
        )

    def _joined_once(self, inner, row, operand):
        """A join of what does not depend on the row, or at most on how large it is."""
        drawn = []
        if self.choose([False, *self.also("unknown", True)]):
            # Known in the step only where no length is: TensorFlow copies the join.
            template = "{0} * tf.cast(tf.size({1}), FLOAT)"
            drawn.append(self.operate(inner, template, [operand[0], row], operand[1]))
            operand = inner.values[-1]
        op = self.choose(["sum", "mean", "max"])
        return [*drawn, self.join(inner, "all_reduce", op, [operand])]

    def differentiate(self, scope):
        # Sources are watched by the tape: whether TensorFlow follows a value that no
        # tape watches (zeros, say) differs between graphs and eager execution.
        watched = self._watched(scope)
        inner = self._recorded(scope, watched)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
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

    def _recorded(self, scope, watched):
        """The scope of what a tape records.

        Shares the list of values: what the tape's body defines is seen after it.
        """
        return dataclasses.replace(
            scope,
            num_tapes=scope.num_tapes + 1,
            watched=(*scope.watched, *watched),
            depth=scope.depth + 1,
        )

    def nested_tapes(self, scope):
        """Tapes inside one another whose targets do depend on their sources.

        A gradient penalty is of this form. Tapes that are drawn freely seldom are: most
        derivatives of second order are zero.
        """
        num_tapes = self.number(1, MAX_TAPES - scope.num_tapes)
        return self._nested_tapes(scope, self.pick_float(scope), num_tapes)

    def _nested_tapes(self, scope, source, num_tapes):
        inner = self._recorded(scope, [source])
        statements = []
        value = source
        if num_tapes > 1:
            statements.append(self._nested_tapes(inner, source, num_tapes - 1))
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

    def _bent(self, scope, value):
        """A nonlinear operation of a value, with another one perhaps."""
        other = self.pick(scope, lambda t: t == value[1])
        template = self.choose(["tf.square({0})", "{0} * {1}", "tf.sin({0})"])
        statement = self.operate(scope, template, [value[0], other[0]], value[1])
        return (statement.result, value[1]), statement

    def _joined(self, scope, value):
        kind = self.choose(["all_reduce"] * 4 + list(COLLECTIVES)[1:])
        parameter = self.choose(COLLECTIVES[kind].parameters(self.num_replicas))
        if not self.can_join(kind, parameter)(value[1]):
            kind, parameter = "all_reduce", "sum"
        statement = self.join(scope, kind, parameter, [value])
        return scope.values[-1], statement

    def _watched(self, scope):
        """What a tape watches: often what the tapes around it watch, too."""
        found = [
            self.choose(scope.watched)
            if scope.watched and self.number(0, 2)
            else self.pick_float(scope)
            for _ in range(self.number(1, 2))
        ]
        return list(dict.fromkeys(found))

    def push(self, scope):
        """A forward accumulator over a few operations and collectives."""
        source = self.pick_float(scope)
        tangent = self.pick(scope, lambda t: t == source[1])
        inner = self._plain(scope)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
        return syntax.Push(
            result=self.define(scope, dict(inner.values)[body.result]),
            source=source[0],
            tangent=tangent[0],
            body=body,
        )

    def jacobian(self, scope):
        source = self.pick_float(scope)
        limit = MAX_JACOBIAN // size(source[1].shape)
        inner = self._plain(scope)
        body = self.block(
            inner, lambda t: t.dtype == FLOAT and size(t.shape) <= limit, least=1
        )
        target = dict(inner.values)[body.result]
        return syntax.Jacobian(
            result=self.define(scope, Type(FLOAT, (*target.shape, *source[1].shape))),
            source=source[0],
            body=body,
        )

    def _plain(self, scope):
        """The scope of what is transformed as a whole."""
        return scope.inner(is_plain=True, may_write=False)


@st.composite
def programs(draw, features=FEATURES, nums_replicas=(2, 3, 1)):
    """Programs of any kind that the grammar knows, or of some features of it."""
    return Drawer(draw, features, nums_replicas).program()

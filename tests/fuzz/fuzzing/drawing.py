"""Draws programs: every choice is Hypothesis', so that what fails shrinks."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzzing import source, structure, syntax
from fuzzing.choices import FEATURES, Scope
from fuzzing.collectives import COLLECTIVES
from fuzzing.drawn_blocks import MAX_TAPES, Blocks
from fuzzing.syntax import BOOL, FLOAT, HALF, INT, Type

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
SPECIAL_INPUTS = ((source.FAILS, Type(BOOL)), (source.UNEVEN, Type(FLOAT, (3,))))
VARIABLE_TYPES = (
    Type(FLOAT, (3,)),
    Type(FLOAT),
    Type(FLOAT, (2, 3)),
    Type(INT),
    Type(INT, (3,)),
    Type(BOOL),
)
MAX_STATEMENTS = 12


class Drawer(Blocks):
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
        used = set().union(*map(structure.used, statements))
        defined = [name for name, _ in scope.values[len(inputs) :]]
        # Whatever nothing else uses: at this level nothing is dead.
        outputs = tuple(name for name in defined if name not in used)
        statements = structure.without_dead(statements, set(outputs))
        used = set().union(*map(structure.used, statements))
        parts = [p for statement in statements for p in structure.inside(statement)]
        self._fails = any(isinstance(p, syntax.Fail) for p in parts)
        self._is_uneven = source.UNEVEN in used
        used |= {source.FAILS} if self._fails else set()
        return syntax.Program(
            inputs=tuple(
                value for value in (*inputs, *SPECIAL_INPUTS) if value[0] in used
            ),
            variables=tuple(self.variables),
            statements=statements,
            outputs=outputs,
            setting=self.setting(),
        )


@st.composite
def programs(draw, features=FEATURES, nums_replicas=(2, 3, 1)):
    """Programs of any kind that the grammar knows, or of some features of it."""
    return Drawer(draw, features, nums_replicas).program()

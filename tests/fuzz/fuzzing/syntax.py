"""Step functions as data: what is drawn, printed as Python, and interpreted.

A program is a list of statements over named values, each assigned once. Nested blocks
see the values of the blocks around them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

FLOAT, INT, BOOL, HALF = "float", "int", "bool", "half"


@dataclasses.dataclass(frozen=True)
class Type:
    """What is known of a value: ``float``, ``int``, ``bool`` or ``half``; its shape."""

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
    """A collective on a nest.

    Attributes:
      results: One name per argument.
      arguments: Names of operands; one collective communicates all of them.
      kind: Which one of ``collectives.COLLECTIVES``.
      parameter: Its second argument, such as the reduction; None for no argument.
    """

    results: tuple[str, ...]
    arguments: tuple[str, ...]
    kind: str
    parameter: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """``result = variable.read_value()``, or by the handle alone.

    Attributes:
      is_raw: Whether by ``tf.raw_ops``, of which TensorFlow keeps no record.
    """

    result: str
    variable: str
    is_raw: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """``variable.method(argument)``: ``assign``, ``assign_add`` or ``assign_sub``.

    Attributes:
      form: ``method``; ``unread``, with ``read_value=False``; or ``raw``, by
        ``tf.raw_ops`` and the variable's handle.
    """

    variable: str
    method: str
    argument: str
    form: str = "method"


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
      shape: Of what it gives.
      op: Of a ``map_reduce``, else empty.
    """

    results: tuple[str, ...]
    items: tuple[str, ...]
    parameter: str
    body: Block
    shape: tuple[int, ...] = ()
    op: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Push:
    """A ``tf.autodiff.ForwardAccumulator``: the change of the body's result.

    Attributes:
      result: The change, of the type of the body's result.
      source: A value that the accumulator follows.
      tangent: Its change: another value of the same type.
      body: What is followed.
    """

    result: str
    source: str
    tangent: str
    body: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Jacobian:
    """``tape.jacobian`` of the body's result by one source."""

    result: str
    source: str
    body: Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectorize:
    """``tf.vectorized_map`` over the rows of a value.

    Attributes:
      result: The stacked results.
      argument: Its rows are mapped.
      parameter: A row's name in the body.
      body: What becomes of a row.
      shape: Of the result.
      num_unknown: Of how many axes no length is known while tracing.
    """

    result: str
    argument: str
    parameter: str
    body: Block
    shape: tuple[int, ...]
    num_unknown: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fail:
    """``result = argument``, behind an assertion that fails if the input ``f`` is set.

    Attributes:
      result: What comes behind the assertion.
      argument: Its value.
      is_late: Whether the assertion waits for a loop, so that others are ahead.
    """

    result: str
    argument: str
    is_late: bool = False


# Forms of ``Uneven`` that join the values themselves.
JOINS = ("sum", "mean", "min", "max", "gather")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uneven:
    """A number from the input ``u``, of which replicas may have different lengths.

    Attributes:
      result: A floating-point number.
      form: ``own`` is the own sum, ``examples`` is ``mean_over_examples``; the others
        are sums of what a collective gives, which is refused where lengths differ.
    """

    result: str
    form: str


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
    | Push
    | Jacobian
    | Vectorize
    | Fail
    | Uneven
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outside:
    """What the user does to a variable between two steps.

    Attributes:
      step: Before which step.
      variable: Its name.
      kind: ``new`` assigns another value, ``same`` the value that it reads as,
        ``reset`` the one that it began with, ``add`` adds a number.
    """

    step: int
    variable: str
    kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How a program is run.

    Attributes:
      placement: ``shared`` (one device), ``mirrored`` (a device and copies of variables
        for each replica) or ``separate`` (the same, with memories apart as on GPUs).
      num_replicas: R.
      num_steps: Steps in all.
      feed: ``values`` (a ``PerReplica`` per step), ``iterator`` (one step per call),
        ``unknown`` (the same, with shapes that are not known while tracing) or
        ``loop`` (all steps in one call).
      seed: Of inputs.
      outside: What is written between steps, in order.
      fails: The step before which one more fails, and the replica that fails it.
      recovers: ``reset`` or ``same``: then assigned to what replicas keep themselves.
      is_even: Whether all replicas have as many rows of ``u``.
    """

    placement: str
    num_replicas: int
    num_steps: int
    feed: str
    seed: int
    outside: tuple[Outside, ...] = ()
    fails: tuple[int, int] | None = None
    recovers: str = "reset"
    is_even: bool = True


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

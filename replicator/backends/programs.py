"""The cache of built steps, and the checks of a call of ``run``."""

from __future__ import annotations

import collections
import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf import dispatch as _tf_dispatch
from replicator.collectives import differentiable, reductions
from replicator.core import context, step, validation
from replicator.core.step import PerReplica
from replicator.core.validation import (
    INT32_MAX,
    check_not_distributed,
    check_step_fn,
    format_value,
    is_integer,
    name_of,
)
from replicator.errors import RetraceLimitError, RetraceWarning, RunContextError
from replicator.inputs.batches import (
    as_value,
    common_spec,
    is_composite,
    is_per_replica_nest,
    values_of,
)
from replicator.inputs.iterator import InputIterator, spec_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from replicator.checkpoint.position import Job


MAX_FUNCTIONS_PER_CODE = 16
NUM_FUNCTIONS_TO_WARN = 5


class ProgramCache:
    """One built program per step function, signature and optimizer settings.

    Step functions are referenced weakly: when one is garbage-collected, its programs
    cannot run any more, so they and their graphs are freed as well.
    """

    def __init__(self, is_stale: Callable[[Any], bool] = lambda _: False) -> None:
        self._is_stale = is_stale  # whether a program has to be built again
        self._programs: dict[tuple[Hashable, ...], tuple[str, Any]] = {}
        self._held: dict[Hashable, list[Any]] = {}
        self._num_traced: collections.Counter[Any] = collections.Counter()
        self._owners: dict[Any, Any] = {}
        # By code or type, the steps that were traced while none ran again.
        self._in_a_row: dict[Any, list[Hashable]] = collections.defaultdict(list)

    def get(
        self, step_fn: Callable[..., Any], signature: Hashable, build: Callable[[], Any]
    ) -> Any:
        """Returns the program of ``step_fn``, built on first use and where stale."""
        key = step.identity(step_fn)
        full_key = key, signature, _tf_dispatch.optimizer_settings()
        entry = self._programs.get(full_key)
        if entry:
            self._in_a_row.clear()
            if not self._is_stale(entry[1]):
                return entry[1]
        if key not in self._held:
            self._check_retracing(step_fn)
        # Of inputs alone, or of inputs and a number of steps.
        first = signature[0] if isinstance(signature, tuple) else signature
        check_step_fn(step_fn, takes_batch=first is not None)
        check_not_distributed()
        program = build()
        self._programs[full_key] = name_of(step_fn), program
        if key not in self._held:
            code, owner = step.origin_of(step_fn) or (None, None)
            is_one_of_many = self._num_traced[code, id(owner)] > MAX_FUNCTIONS_PER_CODE
            # What is needed to run it; a partial of numbers would live as long as its
            # function.
            parts = step.parts_of(step_fn) + [step_fn] * is_one_of_many
            self._held[key] = [
                step.hold(part, self, ProgramCache._drop, key) for part in parts
            ]
        return program

    def items(self) -> list[tuple[str, Any]]:
        """Name of the step function and program, in the order of building."""
        return list(self._programs.values())

    def _forget(self, key: tuple[Any, int]) -> None:
        """Forgets how often the step functions of an object were traced."""
        self._owners.pop(key, None)
        self._num_traced.pop(key, None)

    def _drop(self, key: Hashable) -> None:
        """Forgets a step function that no longer exists."""
        self._held.pop(key, None)
        for program_key in [k for k in self._programs if k[0] == key]:
            del self._programs[program_key]

    def _check_retracing(self, step_fn: Callable[..., Any]) -> None:
        origin = step.origin_of(step_fn)
        if origin is None:
            self._check_row(step_fn, type(step_fn))
            return
        code, owner = origin
        key = code, id(owner)
        if owner is not None and key not in self._num_traced:
            self._check_row(step_fn, code)
            # Another object can have the address of this one later.
            self._owners[key] = step.hold(owner, self, ProgramCache._forget, key)
        self._num_traced[key] += 1
        self._report_retracing(step_fn, self._num_traced[key], MAX_FUNCTIONS_PER_CODE)

    def _check_row(self, step_fn: Callable[..., Any], kind: Any) -> None:
        """Reports steps of ever new objects of which none runs twice."""
        # Many objects may each have a step, so only garbage-collected ones count.
        before = self._in_a_row[kind]
        num_collected = sum(key not in self._held for key in before)
        self._report_retracing(step_fn, num_collected + 1)
        before.append(step.identity(step_fn))

    def _report_retracing(
        self, step_fn: Callable[..., Any], num_traced: int, limit: int | None = None
    ) -> None:
        text = (
            f"{num_traced} different function objects of "
            f"{name_of(step_fn)!r} were passed to run(), and each is traced "
            "again; create the step function (or functools.partial, or lambda) once, "
            "outside the loop, and pass the same object every time; pass values that "
            "change from call to call through inputs or a tf.Variable"
        )
        # Partials with different arguments may be different steps on purpose.
        is_partial = isinstance(step_fn, functools.partial)
        if limit is not None and num_traced > limit and not is_partial:
            raise RetraceLimitError(text)
        if num_traced == NUM_FUNCTIONS_TO_WARN:
            warnings.warn(text, RetraceWarning, stacklevel=_user_stack_level())


def _user_stack_level() -> int:
    """The ``stacklevel`` with which ``warnings.warn`` points at the user's code."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 (documented, in CPython)
    package = __name__.partition(".")[0]
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(
        f"{package}."
    ):
        frame, level = frame.f_back, level + 1
    return level


class Call(NamedTuple):
    """A call of ``run`` or ``schedule``, with checked arguments."""

    step_fn: Callable[..., Any]
    inputs: Any  # An ``InputIterator``, a nest of ``PerReplica``, or None.
    num_steps: int
    signature: Hashable  # Of the inputs: a program fits all calls with the same.
    specs: list[Any]  # The type of the batch of one replica, if there is one.

    def source(self, replicas: Iterable[int]) -> Any:
        """What a program reads for some replicas: iterators, values, or nothing."""
        if isinstance(self.inputs, InputIterator):
            return self.inputs.source
        return None if self.inputs is None else values_of(self.inputs, replicas)


def check_call(
    repl: Job,
    caller: str,
    step_fn: Callable[..., Any],
    inputs: Any,
    num_steps: Any,
    more: tuple[Any, ...],
    others: dict[str, Any],
) -> Call:
    """Checks the arguments of ``run`` or ``schedule``, and that it is plain Python."""
    if context.in_replica_context():
        raise RunContextError(
            "run() was called inside a step function, which is the code of one "
            "replica; call the other function directly, or run one step after another"
        )
    if not tf.executing_eagerly():
        raise RunContextError(
            "run() was called inside a tf.function, but it compiles the step itself "
            "and counts steps and input positions in Python; call it from plain "
            "Python, with num_steps=k for k steps in one dispatch"
        )
    validation.check_no_more(caller, more, others)
    if not is_integer(num_steps, least=1, most=INT32_MAX):
        raise ValueError(
            f"num_steps {format_value(num_steps)} must be an integer of at least 1 and "
            f"at most {INT32_MAX}; call run() again for more steps"
        )
    if inputs is None:
        return Call(step_fn, inputs, num_steps, None, [])
    if isinstance(inputs, InputIterator):
        inputs.check_owner(repl.replicator_id)
        specs = [inputs.element_spec]
        return Call(step_fn, inputs, num_steps, inputs.signature, specs)
    if num_steps > 1:
        raise ValueError(
            f"num_steps {num_steps!r} needs a new batch for each step, but inputs are "
            "fixed values; pass an InputIterator from make_input_iterator()"
        )
    spec = _spec_of(repl, inputs)
    return Call(step_fn, inputs, num_steps, ("values", spec_signature(spec)), [spec])


def _check_leaf(
    repl: Job, leaf: PerReplica[Any], said: str, reuse: str, instead: str
) -> None:
    validation.check_owner(leaf, repl.replicator_id, "a PerReplica", reuse)
    if len(leaf) != repl.num_local_replicas:
        raise ValueError(
            f"{said} {len(leaf)} values per leaf, but there are "
            f"{repl.num_local_replicas} replicas; {instead}"
        )


def _spec_of(repl: Job, inputs: Any) -> Any:
    """The type of the batch of one replica, of fixed values that are checked."""
    if not is_per_replica_nest(inputs):
        raise TypeError(
            "inputs must be an InputIterator from make_input_iterator(), a nest of "
            f"PerReplica, or None; got {type(inputs).__name__!r}"
        )
    for leaf in tf.nest.flatten(inputs):
        reuse = "pass PerReplica(list(values)) to reuse it"
        _check_leaf(repl, leaf, "inputs have", reuse, "pass one value per replica")
    return tf.nest.map_structure(common_spec, inputs)


def reduce(
    repl: Job, op: str, value: Any, run: Callable[..., Any] | None = None
) -> Any:
    """Reduces the values of this process, or of all in a step that ``run`` runs."""
    context.check_reduce_op(op)
    leaves = tf.nest.flatten(value)
    given = {
        target: _values_of(repl, op, leaf)
        for target, leaf in enumerate(leaves)
        if isinstance(leaf, PerReplica)
    }
    filled = {target: values for target, values in given.items() if values}
    if run is not None and filled:
        reduced = run(_REDUCTIONS[op], [leaves[target] for target in filled])
        filled = dict(zip(filled, map(list, reduced), strict=True))
    for target in given:
        values = filled.get(target, [None])
        leaves[target] = values[0]
        if run is None and len(values) > 1:
            with tf.device("CPU:0"):
                leaves[target] = differentiable.combine(values, op)
    return tf.nest.pack_sequence_as(value, leaves)


def _values_of(repl: Job, op: str, leaf: PerReplica[Any]) -> list[tf.Tensor]:
    """The tensors to reduce; none where steps return None."""
    reuse = "pass what run() of this one returned"
    _check_leaf(repl, leaf, f"reduce {op!r} of", reuse, "pass what run() returned")
    if leaf[0] is None:
        return []
    values = [as_value(value, "values to reduce") for value in leaf]
    for value in values:
        if is_composite(value):
            raise TypeError(
                f"reduce {op!r} of a {type(value).__name__!r} is not defined; reduce a "
                "tensor that the step computes from it, or use list(per_replica_value)"
            )
        differentiable.check_reducible(value, op, "reduce")
    kinds = [f"{value.dtype.name}{value.shape}" for value in values]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"reduce {op!r} of values whose shape or type differs between replicas, "
            f"{', '.join(kinds)}, is not defined; reduce in the step first (to a mean "
            "or a sum), or use list(per_replica_value)"
        )
    return values


def _reduction(op: str) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        return reductions.all_reduce(value, op)

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


# Fixed functions: each is traced once per structure and shapes.
_REDUCTIONS = {op: _reduction(op) for op in context.REDUCE_OPS}

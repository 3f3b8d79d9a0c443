"""The cache of built steps, and the checks of a call of ``run``."""

from __future__ import annotations

import collections
import functools
import re
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator import errors
from replicator.collectives import differentiable, reductions
from replicator.core import context, step, validation
from replicator.core.validation import INT32_MAX, format_value, is_integer, name_of
from replicator.inputs import batches
from replicator.inputs.iterator import InputIterator, spec_signature

if TYPE_CHECKING:
    from replicator.checkpoint.position import Job


MAX_FUNCTIONS_PER_CODE = 16
NUM_FUNCTIONS_TO_WARN = 5


class ProgramCache(step.StepCache):
    """One built program, with its name, per step, signature and optimizer settings.

    Step functions are referenced weakly: when one is garbage-collected, its programs
    cannot run any more, so they and their graphs are freed as well.
    """

    def __init__(self, is_stale: Callable[[Any], bool] = lambda _: False) -> None:
        super().__init__()
        self._is_stale = is_stale  # whether a program has to be built again
        # By code and object, how many steps were traced, and the object, weakly: later
        # another one can have its address.
        self._num_traced: dict[Hashable, tuple[int, Any]] = {}
        # By code or type, the steps that were traced while none ran again.
        self._in_a_row: dict[Any, list[Hashable]] = collections.defaultdict(list)

    def get(self, call: Call, build: Callable[[], Any], *key: Hashable) -> Any:
        """Returns the program of a call, built on first use and where stale."""
        full_key, made = self.find(call.step_fn, call.signature, *key)
        if made is not None:
            self._in_a_row.clear()
            if not self._is_stale(made[1]):
                return made[1]
        is_one_of_many = self._check_retracing(call.step_fn, full_key[0])
        _check_step(call)
        program = build()
        # A partial of numbers would live as long as its function.
        more = [call.step_fn] * is_one_of_many
        self.keep(full_key, (name_of(call.step_fn), program), call.step_fn, *more)
        return program

    def _check_retracing(self, step_fn: Callable[..., Any], function: Hashable) -> bool:
        """Reports steps of one code; says whether there were too many of them."""
        if function in self._held:
            return False
        code, owner = step.origin_of(step_fn)
        key = code, id(owner)
        num_traced, held = self._num_traced.get(key, (0, None))
        if owner is not None and not num_traced:
            # Ever new objects of which none runs twice. Many may each have a step, so
            # only garbage-collected ones count.
            before = self._in_a_row[code]
            num_collected = sum(each not in self._held for each in before)
            self._report_retracing(step_fn, num_collected + 1)
            before.append(function)
            held = step.hold(owner, self, ProgramCache._forget, key)
        self._num_traced[key] = num_traced + 1, held
        if num_traced + 1 >= NUM_FUNCTIONS_TO_WARN:
            self._report_retracing(step_fn, num_traced + 1, MAX_FUNCTIONS_PER_CODE)
        return num_traced >= MAX_FUNCTIONS_PER_CODE

    def _forget(self, key: Hashable) -> None:
        """Forgets how often the steps of an object that is gone were traced."""
        self._num_traced.pop(key, None)

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
            raise errors.RetraceLimitError(text)
        if num_traced == NUM_FUNCTIONS_TO_WARN:
            frame, level = sys._getframe(), 1  # noqa: SLF001 (documented, in CPython)
            ours = re.compile(__name__.partition(".")[0] + r"\.")
            while frame.f_back and ours.match(frame.f_globals.get("__name__", "")):
                frame, level = frame.f_back, level + 1  # to the user's code
            warnings.warn(text, errors.RetraceWarning, stacklevel=level)


class Call(NamedTuple):
    """A call of ``run`` or ``schedule``, or of a step by a strategy."""

    step_fn: Any = None
    inputs: Any = None  # An ``InputIterator``, a nest of ``PerReplica``, or None.
    num_steps: int = 1
    name: str = ""  # Of the step.
    signature: Hashable = None  # Of the inputs; a program fits all with the same.
    specs: Sequence[Any] = ()  # The type of the batch of one replica, if there is one.

    def source(self, replicas: Iterable[int]) -> Any:
        """What a program reads for some replicas: iterators, values, or nothing."""
        if isinstance(self.inputs, InputIterator):
            return self.inputs.source
        if self.inputs is None:
            return None
        return batches.values_of(self.inputs, replicas)

    def checked(self, repl: Job, caller: str, more: Any, others: Any) -> Call:
        """Checks the arguments, and that ``caller`` was called in plain Python."""
        if context.in_replica_context():
            raise errors.RunContextError(
                "run() was called inside a step function, which is the code of one "
                "replica; call the other function directly, or run one step after "
                "another"
            )
        if not tf.executing_eagerly():
            raise errors.RunContextError(
                "run() was called inside a tf.function, but it compiles the step "
                "itself and counts steps and input positions in Python; call it from "
                "plain Python, with num_steps=k for k steps in one dispatch"
            )
        if more or others:
            got = [f"{name}=" for name in others] or [f"{len(more)} extra arguments"]
            raise TypeError(
                f"{caller}() does not take {', '.join(got)}; write "
                f"repl.{caller}(step_fn, inputs, num_steps=k) with inputs = "
                "repl.make_input_iterator(input_fn), or a nest of PerReplica such as "
                "(x, y); the step takes it as one argument: def step_fn(batch): x, y = "
                "batch"
            )
        inputs, num_steps = self.inputs, self.num_steps
        if not is_integer(num_steps, least=1, most=INT32_MAX):
            raise ValueError(
                f"num_steps {format_value(num_steps)} must be an integer of at least 1 "
                f"and at most {INT32_MAX}; call run() again for more steps"
            )
        call = self._replace(name=name_of(self.step_fn))
        if inputs is None:
            return call
        if isinstance(inputs, InputIterator):
            inputs.check_owner(repl.replicator_id)
            specs = [inputs.element_spec]
            return call._replace(signature=inputs.signature, specs=specs)
        if num_steps > 1:
            raise ValueError(
                f"num_steps {num_steps!r} needs a new batch for each step, but inputs "
                "are fixed values; pass an InputIterator from make_input_iterator()"
            )
        if not batches.is_per_replica_nest(inputs):
            raise TypeError(
                "inputs must be an InputIterator from make_input_iterator(), a nest of "
                f"PerReplica, or None; got {type(inputs).__name__!r}"
            )
        for leaf in tf.nest.flatten(inputs):
            reuse = "pass PerReplica(list(values)) to reuse it"
            _check_leaf(repl, leaf, "inputs have", reuse, "pass one value per replica")
        spec = tf.nest.map_structure(batches.common_spec, inputs)
        signature = "values", spec_signature(spec)
        return call._replace(signature=signature, specs=[spec])


def _check_step(call: Call) -> None:
    """Checks a step before it is traced."""
    step_fn = call.step_fn
    if not callable(step_fn):
        raise TypeError(
            f"run() takes a step function, but got a {type(step_fn).__name__!r}; pass "
            "the function itself, run(step_fn, inputs), not its return value"
        )
    num_arguments = int(call.inputs is not None)
    if not validation.takes(step_fn, num_arguments):
        if not num_arguments:
            wrong = (
                "takes arguments, but run() got no inputs; write run(step_fn, inputs) "
                "with inputs = repl.make_input_iterator(input_fn), or a step without "
                "arguments"
            )
        elif validation.takes(step_fn, 0):
            wrong = (
                "takes no argument, but run() got inputs; write def step_fn(batch):, "
                "or run(step_fn) without inputs"
            )
        else:
            wrong = (
                "cannot be called with one argument, but run(step_fn, inputs) passes "
                "the whole batch as one argument; write def step_fn(batch): x, y = "
                "batch, and repl.run(step_fn, inputs)"
            )
        raise TypeError(f"step {call.name!r} {wrong}")
    keras = sys.modules.get("keras")
    distribution = keras and keras.distribution.distribution()
    if distribution:
        raise errors.StrategyError(
            f"keras.distribution is set to {type(distribution).__name__}, which Keras "
            "accepts on TensorFlow and does not do; call "
            "keras.distribution.set_distribution(None), and let the replicator place "
            "replicas and stages"
        )


def _check_leaf(
    repl: Job, leaf: step.PerReplica[Any], prefix: str, reuse: str, instead: str
) -> None:
    validation.check_owner(leaf, repl.replicator_id, "a PerReplica", reuse)
    if len(leaf) != repl.num_local_replicas:
        raise ValueError(
            f"{prefix} {len(leaf)} values per leaf, but there are "
            f"{repl.num_local_replicas} replicas; {instead}"
        )


def reduce(
    repl: Job, op: str, value: Any, run: Callable[..., Any] | None = None
) -> Any:
    """Reduces the values of this process, or of all in a step that ``run`` runs."""
    context.check_reduce_op(op)
    leaves = tf.nest.flatten(value)
    given = {
        index: _values_of(repl, op, leaf)
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, step.PerReplica)
    }
    filled = {index: values for index, values in given.items() if values}
    if run is not None and filled:
        reduced = run(_REDUCTIONS[op], [leaves[index] for index in filled])
        filled = {i: [own[0]] for i, own in zip(filled, reduced, strict=True)}
    for index in given:
        values = filled.get(index, [None])
        with tf.device("CPU:0"):
            leaves[index] = (
                differentiable.combine(values, op) if len(values) > 1 else values[0]
            )
    return tf.nest.pack_sequence_as(value, leaves)


def _values_of(repl: Job, op: str, leaf: step.PerReplica[Any]) -> list[tf.Tensor]:
    """The tensors to reduce; none where steps return None."""
    reuse = "pass what run() of this one returned"
    _check_leaf(repl, leaf, f"reduce {op!r} of", reuse, "pass what run() returned")
    if leaf[0] is None:
        return []
    values = [batches.as_value(value, "values to reduce") for value in leaf]
    for value in values:
        if batches.is_composite(value):
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

"""The cache of built steps, and the checks of a call of ``run``."""

from __future__ import annotations

import collections
import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import dispatch as _tf_dispatch
from replicator.collectives import differentiable, reductions
from replicator.core import context, devices, step, validation
from replicator.core.step import PerReplica
from replicator.core.topology import JobFacts
from replicator.core.validation import (
    INT32_MAX,
    check_not_distributed,
    check_step_fn,
    format_value,
    is_integer,
    name_of,
)
from replicator.errors import RetraceLimitError, RetraceWarning, RunContextError
from replicator.inputs import iterator
from replicator.inputs.context import (
    InputFn,
    InputReplicationMode,
    as_value,
    check_mode,
    common_spec,
    is_composite,
    is_per_replica_nest,
    own_contexts,
    pipeline_contexts,
)
from replicator.inputs.iterator import InputIterator, spec_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from replicator.core.validation import ReplicatorId
    from replicator.inputs.audit import InputAudit


MAX_FUNCTIONS_PER_CODE = 16
NUM_FUNCTIONS_TO_WARN = 5


class ProgramCache:
    """Keeps one built program per step function, signature and optimizer settings.

    Step functions are referenced weakly: when one is garbage-collected, its programs
    cannot run any more, so they and their graphs are freed as well.
    """

    def __init__(self) -> None:
        self._programs: dict[tuple[Hashable, ...], tuple[str, Any]] = {}
        self._held: dict[Hashable, list[Any]] = {}
        self._num_traced: collections.Counter[Any] = collections.Counter()
        self._owners: dict[Any, Any] = {}
        self._is_reused = False
        self._in_a_row: dict[Any, list[Hashable]] = {}

    def get(
        self,
        step_fn: Callable[..., Any],
        signature: Hashable,
        build: Callable[[], Any],
    ) -> Any:
        """Returns the program of ``step_fn``, built on first use."""
        settings = _tf_dispatch.optimizer_settings()
        key = step.identity(step_fn), signature, settings
        found = self._programs.get(key)
        if found:
            self._is_reused = True
            return found[1]
        return self._add(step_fn, signature, build)

    def replace(
        self,
        step_fn: Callable[..., Any],
        signature: Hashable,
        build: Callable[[], Any],
    ) -> Any:
        """Builds the program of ``step_fn`` again and replaces the old one."""
        return self._add(step_fn, signature, build)

    def items(self) -> list[tuple[str, Any]]:
        """Name of the step function and program, in the order of building."""
        return list(self._programs.values())

    def _add(
        self,
        step_fn: Callable[..., Any],
        signature: Hashable,
        build: Callable[[], Any],
    ) -> Any:
        key = step.identity(step_fn)
        if key not in self._held:
            self._check_retracing(step_fn)
        check_step_fn(step_fn, takes_batch=_has_inputs(signature))
        check_not_distributed()
        program = build()
        name = name_of(step_fn)
        self._programs[key, signature, _tf_dispatch.optimizer_settings()] = (
            name,
            program,
        )
        if key not in self._held:
            self._held[key] = [
                step.hold(part, self, ProgramCache._drop, key)
                for part in self._lifetime(step_fn)
            ]
        return program

    def _forget(self, key: tuple[Any, int]) -> None:
        """Forgets how often the step functions of an object were traced."""
        self._owners.pop(key, None)
        self._num_traced.pop(key, None)

    def _drop(self, key: Hashable) -> None:
        """Forgets a step function that no longer exists."""
        self._held.pop(key, None)
        for program_key in [k for k in self._programs if k[0] == key]:
            del self._programs[program_key]

    def _lifetime(self, step_fn: Callable[..., Any]) -> list[Any]:
        """The objects that are needed to run the programs of a step function."""
        code, owner = step.origin_of(step_fn) or (None, None)
        is_one_of_many = self._num_traced[code, id(owner)] > MAX_FUNCTIONS_PER_CODE
        # A partial of numbers would live as long as its function.
        return step.parts_of(step_fn) + [step_fn] * is_one_of_many

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
        """Reports steps of ever new objects of which none runs twice.

        Many objects may each have a step, so only garbage-collected ones count, and
        only if no step that had been traced before ran in between.
        """
        if self._is_reused:
            self._in_a_row.clear()
            self._is_reused = False
        before = self._in_a_row.setdefault(kind, [])
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


def _has_inputs(signature: Hashable) -> bool:
    """Whether a signature is that of inputs, alone or with a number of steps."""
    first = signature[0] if isinstance(signature, tuple) else signature
    return first is not None


def _user_stack_level() -> int:
    """The ``stacklevel`` with which ``warnings.warn`` points at the user's code."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 (documented, in CPython)
    package = __name__.partition(".")[0]
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(
        f"{package}."
    ):
        frame, level = frame.f_back, level + 1
    return level


def split_inputs(
    inputs: Any, num_replicas: int, user: ReplicatorId
) -> tuple[Any, list[Any]]:
    """Splits the inputs of ``run`` into a signature and per-replica specs."""
    if inputs is None:
        return None, []
    if isinstance(inputs, InputIterator):
        inputs.check_owner(user)
        return inputs.signature, [inputs.element_spec]
    if is_per_replica_nest(inputs):
        for leaf in tf.nest.flatten(inputs):
            validation.check_owner(
                leaf, user, "a PerReplica", "pass PerReplica(list(values)) to reuse it"
            )
            if len(leaf) != num_replicas:
                raise ValueError(
                    f"inputs have {len(leaf)} values per leaf, but there are "
                    f"{num_replicas} replicas; pass one value per replica"
                )
        spec = tf.nest.map_structure(common_spec, inputs)
        return ("values", spec_signature(spec)), [spec]
    raise TypeError(
        f"inputs must be an InputIterator from make_input_iterator(), a nest of "
        f"PerReplica, or None; got {type(inputs).__name__!r}"
    )


def check_caller() -> None:
    """Rejects ``run`` inside a function that is being traced."""
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


def check_num_steps(num_steps: Any, inputs: Any) -> int:
    """Returns ``num_steps`` if it is valid for ``run``."""
    if not is_integer(num_steps, least=1, most=INT32_MAX):
        raise ValueError(
            f"num_steps {format_value(num_steps)} must be an integer of at least 1 and "
            f"at most {INT32_MAX}; call run() again for more steps"
        )
    if num_steps > 1 and inputs is not None and not isinstance(inputs, InputIterator):
        raise ValueError(
            f"num_steps {num_steps!r} needs a new batch for each step, but inputs are "
            "fixed values; pass an InputIterator from make_input_iterator()"
        )
    return num_steps


class FedBackend(JobFacts):
    """Input pipelines of a backend, and who reads which of them."""

    _divides_last_step = True

    @property
    def feeds_gpus(self) -> bool:
        """Whether this process feeds GPUs, to which it can prefetch batches."""
        return any(devices.is_gpu(device) for device in self._input_devices())

    def make_input_iterator(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        prefetch_to_device: int = 0,
    ) -> InputIterator:
        """Builds the input pipelines and tracks their position.

        Args:
          input_fn: Takes an ``InputContext``, returns a ``tf.data.Dataset`` whose
            elements are batches of one replica.
          mode: How often ``input_fn`` is called, and which replicas each pipeline
            feeds.
          prefetch_to_device: Batches that are prefetched to each replica's device while
            earlier steps run; 0 reads a batch when its step begins.

        Returns:
          The ``inputs`` argument of ``run``.

        Raises:
          InputModeError: ``SINGLE``, if no process feeds all replicas; prefetching, if
            the backend does not support it.
          TypeError: ``input_fn`` is not a function of an ``InputContext``, or does not
            return a dataset.
          ValueError: Pipelines yield different structures or types, or
            ``prefetch_to_device`` is not a number of batches.
        """
        validation.check_input_fn(input_fn, "make_input_iterator")
        check_mode(mode)
        num_batches = iterator.check_num_batches(prefetch_to_device)
        inputs = self._make_input_iterator(input_fn, mode, num_batches)
        inputs.owner = self.replicator_id
        return inputs

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> InputIterator:
        """Makes the pipelines of this process from checked arguments."""
        contexts = own_contexts(
            mode, self.num_replicas, self.num_programs, self.worker_id
        )
        return InputIterator(
            input_fn,
            mode,
            self.num_local_replicas,
            contexts=contexts,
            prefetch=self._prefetch(num_prefetched),
        )

    def _prefetch(
        self, num_batches: int, sources: Sequence[str] = ()
    ) -> iterator.DevicePrefetch | None:
        """Returns how batches are prefetched to this process's replicas, if at all."""
        if not num_batches:
            return None
        return iterator.DevicePrefetch(
            num_batches=num_batches,
            devices=tuple(self._input_devices()),
            sources=tuple(sources),
        )

    def _input_devices(self) -> Sequence[str]:
        """The device of each local replica that receives its batches."""
        return devices.resolve(self.num_local_replicas, None, distinct=False)

    def audit_inputs(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        *,
        key_fn: Callable[[Any], Any],
        num_examples: int | None = None,
    ) -> InputAudit:
        """Reads one epoch and checks that each example is fed exactly once.

        This process reads all pipelines of the whole job, one after the other, before
        training; the epoch ends where ``run`` would end it. All keys are kept in
        memory.

        Args:
          input_fn: As for ``make_input_iterator``, without ``repeat``.
          mode: As for ``make_input_iterator``.
          key_fn: Takes a per-replica batch, returns one key per example (integers or
            strings): a vector of shape ``[examples]``.
          num_examples: Examples in the data set. None counts the examples that were
            read, so examples that no pipeline reads are not detected.

        Returns:
          The counts; print it for a one-line summary.

        Raises:
          InputAuditError: Examples are missing or repeated; the message names the
            pipelines and the fix; its ``audit`` has the counts.
          TypeError: ``key_fn`` is not a function of a batch.
          ValueError: ``num_examples`` is not an integer.
        """
        validation.check_input_fn(input_fn, "audit_inputs")
        check_mode(mode)
        from replicator.inputs import audit  # of tests and notebooks alone

        return audit.audit(
            input_fn,
            pipeline_contexts(mode, self.num_replicas, self.num_workers),
            self.num_replicas,
            key_fn=key_fn,
            num_examples=num_examples,
            divides=self._divides_last_step,
        )


def reduce_here(op: str, value: Any, num_replicas: int, user: ReplicatorId) -> Any:
    """Reduces the values of this process; see ``Replicator.reduce``."""
    context.check_reduce_op(op)

    def reduce_leaf(leaf: Any) -> Any:
        values = _values_of(leaf, op, num_replicas, user)
        if values is None:
            return leaf[0] if isinstance(leaf, PerReplica) else leaf
        if len(values) == 1:
            return values[0]
        with tf.device("CPU:0"):
            return differentiable.combine(values, op)

    return tf.nest.map_structure(reduce_leaf, value)


def _values_of(
    leaf: Any, op: str, num_replicas: int, user: ReplicatorId
) -> list[tf.Tensor] | None:
    """The tensors to reduce, or None if there is nothing to reduce."""
    if not isinstance(leaf, PerReplica):
        return None
    validation.check_owner(
        leaf, user, "a PerReplica", "pass what run() of this one returned"
    )
    if len(leaf) != num_replicas:
        raise ValueError(
            f"reduce {op!r} of {len(leaf)} values per leaf, but there are "
            f"{num_replicas} replicas; pass what run() returned"
        )
    if leaf[0] is None:
        return None
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


def reduce_over_workers(
    run: Callable[..., Any], op: str, value: Any, num_replicas: int, user: ReplicatorId
) -> Any:
    """Reduces in a step of its own, which ``run`` runs; see ``Replicator.reduce``."""
    context.check_reduce_op(op)
    leaves = tf.nest.flatten(value)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if _values_of(leaf, op, num_replicas, user) is not None
    ]
    if places:
        reduced = run(_REDUCTIONS[op], [leaves[place] for place in places])
        for place, leaf in zip(places, reduced, strict=True):
            leaves[place] = leaf
    results = [leaf[0] if isinstance(leaf, PerReplica) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(value, results)


def _reduction(op: str) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        return reductions.all_reduce(value, op)

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


# Fixed functions: each is traced once per structure and shapes.
_REDUCTIONS = {op: _reduction(op) for op in context.REDUCE_OPS}

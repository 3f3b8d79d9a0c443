"""The replica context: what code inside a step can query about its replica."""

from __future__ import annotations

import abc
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from replicator import errors
from replicator._tf import compat as _tf_compat
from replicator.core import validation
from replicator.core.validation import format_value, held, holding, is_integer

Scope = contextlib.AbstractContextManager[Any]
Told = Callable[[Any], None]  # Of a variable that was made.


REDUCE_OPS = ("sum", "mean", "min", "max")


class ReplicaContext(abc.ABC):
    """One replica's view while its step function runs or is traced.

    Users call the functions of ``collectives/``, which accept nests and have gradients.

    Attributes:
      num_replicas: Number of replicas.
      num_replicas_in_sync: Replicas whose updates are aggregated each step.
      num_logical_devices: Devices that one replica is split over.
      is_traced_once: Whether one trace is the step of all replicas, so that constants
        are the same on all of them.
      places: By logical device, where ops are placed; empty for anywhere.
    """

    num_replicas: int
    num_replicas_in_sync: int
    num_logical_devices: int = 1
    is_traced_once: bool = False
    places: Sequence[str | None] = ()

    @property
    @abc.abstractmethod
    def replica_id(self) -> tf.Tensor:
        """A scalar int32 tensor in [0, num_replicas)."""

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """Index among the replicas in sync, as collectives use it; scalar int32.

        Sync groups are consecutive: the first holds replicas 0, 1, ...
        """
        if self.num_replicas == self.num_replicas_in_sync:
            return self.replica_id
        return tf.math.floormod(self.replica_id, self.num_replicas_in_sync)

    @abc.abstractmethod
    def communicate(
        self,
        kind: Any,
        tensors: Sequence[tf.Tensor],
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Carries out a collective on dense operands; returns a result for each."""
        # ``kind`` is a ``collectives.kinds.CollectiveKind``. ``needed_if`` is a scalar
        # bool, identical on every replica, or None for true: where it is false, results
        # are not used, and a backend need not communicate.

    def require_same(self, tensor: tf.Tensor, error: str) -> None:
        """Refuses the step unless all replicas have the same tensor, if it can tell."""
        del tensor, error

    def owned(self, tensor: tf.Tensor, variable: Any) -> tf.Tensor:
        """An averaged gradient that only the owner of a variable keeps, if any."""
        del variable
        return tensor

    def note(self, text: str, activations: Sequence[int] = ()) -> None:
        """Adds lines to ``explain()``, and bytes by logical device to ``summary()``."""
        del text, activations

    def collective_of(self, marker: str) -> Any:
        """The ``Collective`` that a node in a vectorized loop stands for, or None."""
        del marker

    def logical_device(self, index: int) -> Scope:
        """Places ops on one of this replica's devices; see ``logical_device``."""
        return logical_scope(index, self.num_logical_devices, self.places)


def enter(context: ReplicaContext) -> Scope:
    """Makes ``context`` the current one in this thread; used by backends."""
    return holding("replica", context)


def get_replica_context() -> ReplicaContext:
    """Returns the context of the running replica.

    Raises:
      CollectiveContextError: Called outside a step function.
    """
    return require("get_replica_context")


def in_replica_context() -> bool:
    return held("replica") is not None


def gradients_divided(undo: Callable[[list[Any]], list[Any]] | None) -> Scope:
    """Has optimizers sum gradients, of losses divided by the number of replicas."""
    # As tf.distribute has it. With None, the gradients at hand are averages already.
    return holding("undo", undo)


def unscale(grads: list[Any]) -> list[Any]:
    """Returns gradients whose mean over replicas is what an optimizer applies."""
    undo = held("undo")
    return grads if undo is None else undo(grads)


def are_gradients_divided() -> bool:
    """Whether an optimizer's sum over replicas is still to be made."""
    return held("undo") is not None


def require(caller: str, advice: str = "") -> ReplicaContext:
    context: ReplicaContext | None = held("replica")
    if context is None:
        raise errors.CollectiveContextError(
            f"{caller}() was called in cross-replica context, but it needs a replica: "
            "call it inside the step function that you pass to run(); outside, use "
            f"repl.reduce(op, per_replica_value) on what run() returns{advice}"
        )
    return context


def check_in_replica(caller: str) -> None:
    """Refuses updates outside of steps, where users of ``fit`` look for them too."""
    scope = "make and compile the model inside `with repl.scope():`"
    require(caller, f"; for fit() of Keras, {scope}")


def check_reads_outside() -> None:
    if in_replica_context():
        raise errors.RunContextError(
            "next(inputs) was called inside a step, which is the code of one replica; "
            "pass the iterator, repl.run(step_fn, inputs), and use the argument of the "
            "step"
        )


def check_reduce_op(op: Any) -> str:
    if not validation.is_one_of(op, REDUCE_OPS):
        raise ValueError(
            f"unknown reduction {format_value(op)}; use one of "
            f"{', '.join(map(repr, REDUCE_OPS))}"
        )
    return op


# A step is written for one replica, so it names parts of that replica, not machines:
# ``with logical_device(1):``. Every replica maps part ``i`` to one of its own devices
# (Buchlovsky et al. 2019, section 4: ``logical_device`` and data parallelism together).
# The stages of a pipeline are known to the engine by the names that are given here.

# A device type that no runtime has. It stands in the traced graph until the replicas
# are created; TensorFlow would raise an error if one were left over.
_PREFIX = "/device:LOGICAL:"
FUNCTION_PREFIX = "replicator_stage"
# What names of the operations of a task begin with, within a replica.
TASK_NAME = re.compile(r"stage_\d+_[FB]\d+(?=/)")
# What the name of a node ends with that runs after all results of a task.
TASK_END = "/replicator_end"


def logical_device(index: int) -> Scope:
    """Places ops and variables on one of the devices of a replica.

    Inside a step function it places ops; inside ``repl.context()`` it places variables.
    Inputs are on logical device 0. An op outside any scope runs on the device of its
    inputs, a gradient on the device of its forward op, an update on that of its
    variable.

    Args:
      index: In [0, logical_devices_per_replica).

    Returns:
      A context manager.

    Raises:
      DeviceError: No such logical device, or called outside a replica and outside
        ``repl.context()``.
    """
    owner = held("replica") or held("replicator")
    if owner is None:
        raise errors.DeviceError(
            f"logical_device({index!r}) was called outside a replica; use it inside "
            "`with repl.context():` for variables, or inside the step function for ops"
        )
    return owner.logical_device(index)


def logical_scope(
    index: Any, num_logical_devices: int, places: Sequence[str | None]
) -> Scope:
    """The scope of a logical device, for which places may have a name each."""
    device_index = check_logical_index(index, num_logical_devices)
    return tf.device(places[device_index]) if places else contextlib.nullcontext()


def check_logical_index(index: Any, num_logical_devices: int) -> int:
    if not is_integer(index, least=0) or index >= num_logical_devices:
        raise errors.DeviceError(
            f"logical_device({format_value(index)}) does not exist: a replica here has "
            f"{num_logical_devices}; use 0 to {num_logical_devices - 1}, or create the "
            "replicator with logical_devices_per_replica=k"
        )
    return int(index)


def logical_name(index: int) -> str:
    """The device name that stands for a logical device in a traced graph."""
    return f"{_PREFIX}{index}"


def logical_index(device: str) -> int | None:
    """Which logical device a name of the traced graph stands for, or None."""
    _, prefix, index = device.rpartition(_PREFIX)
    return int(index) if prefix else None


def task_name(stage: int, task: object) -> str:
    """The name of a task in graphs and timelines, such as ``stage_0_F3``."""
    return f"stage_{stage}_{task}"


# As ``tf.function`` has it, the first trace may make them: a model that is built by its
# first batch, a metric or an optimizer that makes its state when it is needed. They are
# made outside the step, and the step is traced again, which must not make others. So is
# Keras' global seed generator, from which ``keras.random.normal(shape)`` and others
# draw that get no seed; each replica has its own stream of it.

_Traced = TypeVar("_Traced")


def _ignore(_variable: Any) -> None:
    """Nobody has to know."""


class _Creation(NamedTuple):
    place: Callable[[], Scope] = contextlib.nullcontext
    made: Told = _ignore


def allowed() -> Scope:
    """Lets the library itself create variables (optimizer slots) during a trace."""
    return holding("allowed", True)


def created_in(scope: Callable[[], Scope], made: Told = _ignore) -> Scope:
    return holding("creation", _Creation(scope, made))


def _creation() -> _Creation:
    return held("creation") or _Creation()


def own_variable(value: Any, **how: Any) -> tf.Variable:
    """Makes a variable of the library's own, of which a user's graph knows nothing."""
    # tf.function traces twice what makes variables the first time (test_run).
    return tf.Variable(
        value, trainable=False, experimental_enable_variable_lifting=False, **how
    )


def made_outside(note: Told = _ignore, device: str | None = None) -> Scope:
    """Makes variables that a step creates inside it outside of the step."""

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial_value = kwargs.get("initial_value")
        if not tf.executing_eagerly():  # not yet outside, as libraries may be
            initial_value = _tf_compat.outside_of_step(initial_value)
            # Not as tf.function would, in its graph.
            next_creator = _tf_compat.make_variable
        if initial_value is None:
            raise _refused(kwargs)
        kwargs["initial_value"] = initial_value
        with (
            tf.init_scope(),
            allowed(),
            _creation().place() if device is None else tf.device(device),
        ):
            variable = next_creator(**kwargs)
        _creation().made(variable)
        note(variable)
        return variable

    return _creating(create)


def in_first_trace(trace: Callable[[], _Traced]) -> _Traced:
    """Traces a step; its first trace may create variables."""
    made: list[Any] = []  # which keeps them until the step was traced again
    with made_outside(made.append):
        traced = trace()
    if not made:
        return traced
    with forbidden_in_steps():
        return trace()


def forbidden_in_steps() -> Scope:
    """Makes the creation of variables inside it raise an actionable error."""

    def create(_next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        raise _refused(kwargs)

    return _creating(create)


def _creating(create: Callable[..., Any]) -> Scope:
    """Lets a function make variables, but for those of the library itself."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if not held("allowed"):
            return create(next_creator, **kwargs)
        variable = next_creator(**kwargs)
        _creation().made(variable)
        return variable

    return tf.variable_creator_scope(creator)


def _refused(kwargs: dict[str, Any]) -> errors.CreateVariableInStepError:
    name = kwargs.get("name") or "Variable"
    return errors.CreateVariableInStepError(
        f"the step function created a variable ({name!r}) that it cannot create once "
        "for all steps, but a step runs many times and on many replicas; create "
        "models, metrics and other variables before it, inside `with repl.context():` "
        "(a Keras model creates its variables when it is built: call it once, or call "
        "model.build(shape))"
    )


class StepGenerator:
    """Keras' generator of a step; keep it as long as the program."""

    def __init__(self) -> None:
        self.made = _tf_compat.global_seed_generator()  # None until one is needed

    def installed(self) -> Scope:
        """Makes it this thread's global generator while a step is traced inside."""
        return _tf_compat.drawing_from(self._found)

    def _found(self, of_keras: Callable[[], Any]) -> Any:
        if self.made is None:  # created outside the step, on first use
            with tf.init_scope(), allowed(), _creation().place():
                self.made = of_keras()
        return self.made

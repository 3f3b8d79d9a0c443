"""The cache of built steps, and what a step function returns."""

from __future__ import annotations

import collections
import types
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import context
from replicator.errors import RetraceLimitError, RunContextError
from replicator.inputs import InputIterator, is_per_replica_nest, spec_signature
from replicator.integers import is_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from replicator.per_replica import PerReplica

MAX_FUNCTIONS_PER_CODE = 16


class ProgramCache:
    """Keeps one built program per step function, input signature and step count.

    Step functions are held weakly: when one is gone, nobody can run its programs, so
    they go too, with the memory of their graphs.
    """

    def __init__(self) -> None:
        self._programs: dict[tuple[Hashable, Hashable], tuple[str, Any]] = {}
        self._held: dict[Hashable, list[Any]] = {}
        self._num_traced: collections.Counter[Any] = collections.Counter()

    def get(
        self,
        step_fn: Callable[..., Any],
        signature: Hashable,
        build: Callable[[], Any],
    ) -> Any:
        """Returns the program of ``step_fn``, built on first use.

        Raises:
          RetraceLimitError: The caller makes a new function object for every call.
        """
        found = self._programs.get((_identity(step_fn), signature))
        return found[1] if found else self._add(step_fn, signature, build)

    def replace(
        self,
        step_fn: Callable[..., Any],
        signature: Hashable,
        build: Callable[[], Any],
    ) -> Any:
        """Builds the program of ``step_fn`` again, in the place of the old one."""
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
        key = _identity(step_fn)
        if key not in self._held:
            self._check_retracing(step_fn)
        program = build()
        name = getattr(step_fn, "__qualname__", repr(step_fn))
        self._programs[key, signature] = name, program
        if key not in self._held:
            cache = weakref.ref(self)
            self._held[key] = [
                _hold(part, lambda _: _drop(cache, key)) for part in _parts(step_fn)
            ]
        return program

    def _drop(self, key: tuple[int, ...]) -> None:
        """Forgets a step function that no longer exists."""
        self._held.pop(key, None)
        # Another object can have the address of this one later.
        for origin in [o for o in self._num_traced if o[1] and o[1] == key[0]]:
            del self._num_traced[origin]
        for program_key in [k for k in self._programs if k[0] == key]:
            del self._programs[program_key]

    def _check_retracing(self, step_fn: Callable[..., Any]) -> None:
        code = getattr(step_fn, "__code__", None)
        if code is None:
            return
        # Methods of different objects are different functions with the same code.
        is_method = isinstance(step_fn, types.MethodType)
        origin = code, _identity(step_fn)[0] if is_method else 0
        self._num_traced[origin] += 1
        if self._num_traced[origin] > MAX_FUNCTIONS_PER_CODE:
            raise RetraceLimitError(
                f"{self._num_traced[origin]} different function objects of "
                f"{step_fn.__qualname__!r} were passed to run(), and each is traced "
                "anew; make the step function once, outside the loop, and pass the "
                "same object every time"
            )


def _parts(step_fn: Callable[..., Any]) -> tuple[Any, ...]:
    """The objects that make a step function: a method is made anew at each access."""
    if isinstance(step_fn, types.MethodType):
        return step_fn.__self__, step_fn.__func__
    return (step_fn,)


def _identity(step_fn: Callable[..., Any]) -> tuple[int, ...]:
    return tuple(map(id, _parts(step_fn)))


def _hold(part: Any, callback: Callable[[Any], None]) -> Any:
    """Refers to an object weakly where it can be."""
    try:
        return weakref.ref(part, callback)
    except TypeError:
        return part


def _drop(cache: Callable[[], ProgramCache | None], key: tuple[int, ...]) -> None:
    living = cache()
    if living is not None:
        living._drop(key)  # noqa: SLF001


def split_inputs(inputs: Any, num_replicas: int) -> tuple[Any, list[Any]]:
    """Splits what ``run`` was given into a signature and per-replica specs.

    Args:
      inputs: None, an ``InputIterator`` or a nest of ``PerReplica``.
      num_replicas: Copies of the computation.

    Returns:
      A hashable signature, and the argument specs of the step function: an empty list
      without inputs, else a list of one nest of ``tf.TypeSpec``.

    Raises:
      TypeError: Anything else.
      ValueError: A ``PerReplica`` of another length.
    """
    if inputs is None:
        return None, []
    if isinstance(inputs, InputIterator):
        return inputs.signature, [inputs.element_spec]
    if is_per_replica_nest(inputs):
        for leaf in tf.nest.flatten(inputs):
            if len(leaf) != num_replicas:
                raise ValueError(
                    f"inputs hold {len(leaf)} values per leaf, but there are "
                    f"{num_replicas} replicas; pass one value per replica"
                )
        spec = tf.nest.map_structure(_common_leaf_spec, inputs)
        return ("values", spec_signature(spec)), [spec]
    raise TypeError(
        f"inputs must be an InputIterator from make_input_iterator(), a nest of "
        f"PerReplica, or None; got {type(inputs).__name__!r}"
    )


def _common_leaf_spec(leaf: PerReplica[Any]) -> tf.TypeSpec:
    specs = [tf.type_spec_from_value(tf.convert_to_tensor(v)) for v in leaf]
    if any(not spec.is_compatible_with(specs[0]) for spec in specs[1:]):
        raise ValueError(
            f"inputs differ between replicas in shape or type: {specs}; give every "
            "replica the same shapes"
        )
    return specs[0]


def check_outputs(outputs: Any, step_fn: Callable[..., Any]) -> Any:
    """Turns a step's return value into a nest of tensors.

    Raises:
      TypeError: A leaf that cannot become a tensor.
    """

    def convert(leaf: Any) -> tf.Tensor:
        try:
            return tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            name = getattr(step_fn, "__qualname__", repr(step_fn))
            raise TypeError(
                f"{name} returned a {type(leaf).__name__!r}; a step returns a nest of "
                "tensors (loss, metrics) or None"
            ) from error

    return tf.nest.map_structure(lambda x: x if x is None else convert(x), outputs)


def check_caller() -> None:
    """Refuses ``run`` inside a function that is being traced.

    Raises:
      RunContextError: Says where ``run`` was called and what to do.
    """
    if context.in_replica_context():
        raise RunContextError(
            "run() was called inside a step function; a step is the code of one "
            "replica: call the other function directly, or run one step after another"
        )
    if not tf.executing_eagerly():
        raise RunContextError(
            "run() was called inside a tf.function; it is a compiled program by "
            "itself, and counts steps and the inputs' position in Python: call it from "
            "plain Python, with num_steps=k for k steps in one dispatch"
        )


def check_num_steps(num_steps: Any, inputs: Any) -> int:
    """Returns ``num_steps`` if ``run`` can take it.

    Raises:
      ValueError: Not a positive integer, or more than one step over fixed values.
    """
    if not is_integer(num_steps, least=1):
        raise ValueError(f"num_steps {num_steps!r} must be an integer of at least 1")
    if num_steps > 1 and inputs is not None and not isinstance(inputs, InputIterator):
        raise ValueError(
            f"num_steps {num_steps!r} needs fresh batches for each step, but inputs "
            "are fixed values; pass an InputIterator from make_input_iterator()"
        )
    return num_steps

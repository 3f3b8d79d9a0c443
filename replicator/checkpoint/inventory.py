"""Inventory: the variables to save, with the same names in every process."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.core.validation import format_value
from replicator.optimizer.wrapper import ReplicatedOptimizer


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VariableFacts:
    """The properties that must agree between a checkpoint and a model."""

    shape: tuple[int, ...]  # Static shape.
    dtype: str  # Name of the type.

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Inventory:
    """The variables under some named objects.

    Names are attribute paths, such as ``model/dense/kernel``: unlike Keras' generated
    names, they do not depend on the layers that the process created before.
    """

    def __init__(self, trackables: Mapping[str, Any]) -> None:
        # What TensorFlow saves, by name; for a wrapped optimizer, the inner one.
        self.objects = {name: _inside(value) for name, value in trackables.items()}
        self.variables: dict[str, Any] = {}  # the tf.Variable behind each path
        self.optimizers: dict[str, Any] = {}  # among and under the objects, by path
        # By name, what the object lists but TensorFlow would not save: the states of
        # Keras' seed generators.
        self.extra: dict[str, list[Any]] = {}
        self.others: list[str] = []  # paths of what has state, but is no variable
        self._seen: set[int] = set()
        for name, value in self.objects.items():
            if not _tf_compat.is_trackable(value):
                is_list = isinstance(value, (list, tuple))
                each = ", and each item of a list by a name of its own" * is_list
                raise TypeError(
                    f"{name}={format_value(value)} cannot be saved: it is a "
                    f"{type(value).__name__!r}; pass Keras models and optimizers, "
                    "tf.Modules, tf.Variables and other objects that "
                    f"tf.train.Checkpoint accepts{each}"
                )
        # An optimizer also refers to the weights; their path goes through the model.
        later: list[tuple[str, Any]] = []
        self._walk(sorted(trackables.items()), later)
        for path, optimizer in later:
            if id(_inside(optimizer)) not in self._seen:
                self.optimizers[path] = optimizer
                self._walk([(path, _inside(optimizer))], None)
        for name, value in self.objects.items():
            for index, variable in enumerate(getattr(value, "variables", ())):
                inner = _tf_compat.unwrap(variable)
                if id(inner) not in self._seen and _tf_compat.is_variable(variable):
                    self._seen.add(id(inner))
                    self.extra.setdefault(name, []).append(variable)
                    self.variables[f"{name}/variables[{index}]"] = inner
        # Path of each variable by its ``id``.
        self.paths = {id(value): path for path, value in self.variables.items()}

    def _walk(
        self, start: Sequence[tuple[str, Any]], later: list[tuple[str, Any]] | None
    ) -> None:
        """Names the variables of objects; defers optimizers if ``later`` is a list."""
        queue = collections.deque(start)
        while queue:
            path, value = queue.popleft()
            if id(value) in self._seen:
                continue
            if later is not None and _tf_compat.is_optimizer(value):
                later.append((path, value))
                continue
            self._seen.add(id(value))
            if _tf_compat.is_variable(value):
                variable = _tf_compat.unwrap(value)
                self._seen.add(id(variable))
                self.variables[path] = variable
                continue
            if _tf_compat.has_state(value):
                self.others.append(path)
            children = tf.train.TrackableView.children(value)
            queue.extend((f"{path}/{key}", child) for key, child in children.items())

    def facts(self) -> dict[str, VariableFacts]:
        """Shape and type of each variable, by path."""
        return {
            path: VariableFacts(
                shape=tuple(-1 if d is None else int(d) for d in variable.shape),
                dtype=tf.as_dtype(variable.dtype).name,
            )
            for path, variable in self.variables.items()
        }

    def optimized_paths(self) -> dict[str, list[str] | None]:
        """By path of an optimizer, its weights' paths; None if it is not built."""
        result: dict[str, list[str] | None] = {}
        for path, optimizer in self.optimizers.items():
            updated = _tf_compat.optimized_variables(optimizer)
            result[path] = updated and [
                self.paths[id(_tf_compat.unwrap(variable))] for variable in updated
            ]
        return result


def _inside(value: Any) -> Any:
    return value.wrapped if isinstance(value, ReplicatedOptimizer) else value


# The format is TensorFlow's own ``tf.train.Example``, so that reading a checkpoint
# never executes code.

_LOCAL, _ITERATOR, _REASON = "local/", "iterator/", "reason"
_TENSOR = type(tf.make_tensor_proto(0))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """State that only one worker has."""

    # By variable path, the value on each replica of the worker.
    local: Mapping[str, Sequence[Any]]
    # State of each of its input pipelines; None if there is none to save.
    iterators: Sequence[Sequence[bytes]] | None = None
    reason: str = ""  # Why ``iterators`` is None although there are pipelines.

    def encode(self) -> bytes:
        parts: dict[str, Sequence[bytes]] = {
            _LOCAL + path: [
                tf.make_tensor_proto(np.asarray(value)).SerializeToString()
                for value in values
            ]
            for path, values in self.local.items()
        }
        for index, states in enumerate(self.iterators or ()):
            parts[f"{_ITERATOR}{index}"] = states
        parts[_REASON] = [self.reason.encode()]
        features = {
            key: tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
            for key, values in parts.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        return bytes(example.SerializeToString())

    @classmethod
    def decode(cls, text: bytes) -> Payload:
        """Reads the result of ``encode``."""
        encoded = tf.train.Example.FromString(text).features.feature
        parts = {key: list(value.bytes_list.value) for key, value in encoded.items()}
        num_iterators = sum(key.startswith(_ITERATOR) for key in parts)
        iterators = [parts[f"{_ITERATOR}{index}"] for index in range(num_iterators)]
        return cls(
            local={
                key.removeprefix(_LOCAL): [
                    tf.make_ndarray(_TENSOR.FromString(value)) for value in values
                ]
                for key, values in parts.items()
                if key.startswith(_LOCAL)
            },
            iterators=iterators or None,
            reason=parts[_REASON][0].decode(),
        )

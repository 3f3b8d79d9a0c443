"""Inventory: the variables to save, with the same names in every process."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.core.validation import format_value
from replicator.optimizer.wrapper import ReplicatedOptimizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        self.objects = {n: _unwrap(n, value) for n, value in trackables.items()}
        self.variables: dict[str, Any] = {}  # the tf.Variable behind each path
        self.optimizers: dict[str, Any] = {}  # among and under the objects, by path
        # By name, what the object lists but TensorFlow would not save: the states of
        # Keras' seed generators.
        self.extra: dict[str, list[Any]] = {}
        self.others: list[str] = []  # paths of what has state, but is no variable
        self._seen: set[int] = set()
        # An optimizer also refers to the weights; their path goes through the model.
        later: list[tuple[str, Any]] = []
        self._walk(sorted(trackables.items()), later)
        for path, optimizer in later:
            inner = _inside(optimizer)
            if id(inner) not in self._seen:
                self.optimizers[path] = optimizer
                self._walk([(path, inner)], None)
        for name, value in self.objects.items():
            self._add_extra(name, value)

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

    def _add_extra(self, name: str, value: Any) -> None:
        for index, variable in enumerate(getattr(value, "variables", ())):
            inner = _tf_compat.unwrap(variable)
            if id(inner) not in self._seen and _tf_compat.is_variable(variable):
                self._seen.add(id(inner))
                self.extra.setdefault(name, []).append(variable)
                self.variables[f"{name}/variables[{index}]"] = inner

    def paths(self) -> dict[int, str]:
        """Path of each variable by its ``id``."""
        return {id(variable): path for path, variable in self.variables.items()}

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
        paths = self.paths()
        result: dict[str, list[str] | None] = {}
        for path, optimizer in self.optimizers.items():
            updated = _tf_compat.optimized_variables(optimizer)
            result[path] = updated and [
                paths[id(_tf_compat.unwrap(variable))] for variable in updated
            ]
        return result


def digest(facts: Mapping[str, VariableFacts]) -> str:
    """A hash of the paths, shapes and types; identical for identical models."""
    text = json.dumps(sorted((path, str(f)) for path, f in facts.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _unwrap(name: str, value: Any) -> Any:
    value = _inside(value)
    if not _tf_compat.is_trackable(value):
        is_list = isinstance(value, (list, tuple))
        each = ", and each item of a list by a name of its own" if is_list else ""
        raise TypeError(
            f"{name}={format_value(value)} cannot be saved: it is a "
            f"{type(value).__name__!r}; pass Keras models and optimizers, tf.Modules, "
            f"tf.Variables and other objects that tf.train.Checkpoint accepts{each}"
        )
    return value


def _inside(value: Any) -> Any:
    return value.wrapped if isinstance(value, ReplicatedOptimizer) else value


# The format is TensorFlow's own ``tf.train.Example``, so that reading a checkpoint
# never executes code.

_LOCAL = "local/"
_ITERATOR = "iterator/"
_REASON = "reason"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """State that only one worker has."""

    # By variable path, the value on each replica of the worker.
    local: Mapping[str, Sequence[Any]]
    # State of each of its input pipelines; None if there is none to save.
    iterators: Sequence[Sequence[bytes]] | None = None
    reason: str = ""  # Why ``iterators`` is None although there are pipelines.

    def encode(self) -> bytes:
        features = {
            _LOCAL + path: _feature([_to_bytes(value) for value in values])
            for path, values in self.local.items()
        }
        for index, parts in enumerate(self.iterators or ()):
            features[f"{_ITERATOR}{index}"] = _feature(parts)
        features[_REASON] = _feature([self.reason.encode()])
        example = tf.train.Example(features=tf.train.Features(feature=features))
        return bytes(example.SerializeToString())

    @classmethod
    def decode(cls, text: bytes) -> Payload:
        """Reads the result of ``encode``."""
        encoded = tf.train.Example.FromString(text).features.feature
        features = {key: list(value.bytes_list.value) for key, value in encoded.items()}
        num_iterators = sum(key.startswith(_ITERATOR) for key in features)
        iterators = [features[f"{_ITERATOR}{index}"] for index in range(num_iterators)]
        return cls(
            local={
                key.removeprefix(_LOCAL): list(map(_from_bytes, parts))
                for key, parts in features.items()
                if key.startswith(_LOCAL)
            },
            iterators=iterators or None,
            reason=features[_REASON][0].decode(),
        )


def _feature(parts: Sequence[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=parts))


def _to_bytes(value: Any) -> bytes:
    return bytes(tf.make_tensor_proto(np.asarray(value)).SerializeToString())


def _from_bytes(text: bytes) -> Any:
    return tf.make_ndarray(type(tf.make_tensor_proto(0)).FromString(text))

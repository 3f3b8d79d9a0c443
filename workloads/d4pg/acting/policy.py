"""The policy as actors compute it: NumPy, from one flat vector of weights.

Actors do not import TensorFlow. The learner lays out its weights as specified by
``PolicySpec``, and ``Policy`` computes the same as ``networks.Policy`` from them.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np

from workloads.d4pg.config import NETWORKS
from workloads.options import check_choice

EPSILON = 1e-5  # of layer normalization
KERNEL_SIZE = 3
STRIDES = (2, 1)
_PIXELS = 3  # rank of an observation that is a stack of frames
_MOST_PIXEL_EXAMPLES = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpec:
    """Determines the computation of a policy and the layout of its weights."""

    # ``(D,)`` for float32 states, ``(height, width, channels)`` for stacked uint8
    # frames, oldest first.
    observation_shape: tuple[int, ...]
    action_size: int  # Length of an action.
    hidden_sizes: tuple[int, ...]  # Units of the hidden layers.
    # ``mlp`` (ReLU), or ``layer_norm_mlp`` (the first layer normalized, tanh; then
    # ELU).
    kind: str
    num_conv_filters: int = 32  # Filters of each of the two convolutions; frames only.
    # Outputs of the layer between them and the first hidden one.
    num_features: int = 50

    def __post_init__(self) -> None:
        check_choice("network", self.kind, NETWORKS)
        if not self.hidden_sizes:
            raise ValueError("a policy needs at least one hidden layer, but got none")

    @property
    def uses_pixels(self) -> bool:
        """Whether observations are stacked frames."""
        return len(self.observation_shape) == _PIXELS

    @property
    def variables(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the weights, in the order of the flat vector."""
        found: list[tuple[str, tuple[int, ...]]] = []

        def dense(name: str, num_inputs: int, num_outputs: int) -> int:
            found.append((f"{name}/kernel", (num_inputs, num_outputs)))
            found.append((f"{name}/bias", (num_outputs,)))
            return num_outputs

        def norm(name: str, num_inputs: int) -> None:
            found.extend(
                (f"{name}/{part}", (num_inputs,)) for part in ("gamma", "beta")
            )

        (width,) = self.observation_shape[-1:]
        if self.uses_pixels:
            for index in range(len(STRIDES)):
                shape = (KERNEL_SIZE, KERNEL_SIZE, width, self.num_conv_filters)
                width = self.num_conv_filters
                found.append((f"conv_{index}/kernel", shape))
                found.append((f"conv_{index}/bias", (width,)))
            width = dense("features", conv_size(self), self.num_features)
            norm("features_norm", width)
        for index, size in enumerate(self.hidden_sizes):
            width = dense(f"dense_{index}", width, size)
            if index == 0 and self.kind == "layer_norm_mlp":
                norm("norm", width)
        dense("action", width, self.action_size)
        return tuple(found)

    @property
    def num_floats(self) -> int:
        """Length of the flat vector."""
        return sum(math.prod(shape) for _, shape in self.variables)

    def to_json(self) -> str:
        """Returns the spec as one line of JSON, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PolicySpec:
        """Returns the spec that ``to_json`` wrote."""
        fields = json.loads(text)
        for name in ("observation_shape", "hidden_sizes"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def conv_size(spec: PolicySpec) -> int:
    """Returns the size of the last convolution's output for one observation."""
    height, width = spec.observation_shape[:2]
    for stride in STRIDES:
        height = (height - KERNEL_SIZE) // stride + 1
        width = (width - KERNEL_SIZE) // stride + 1
    return height * width * spec.num_conv_filters


class Policy:
    """Computes actions from observations.

    Attributes:
      spec: The specification of the policy.
    """

    def __init__(self, spec: PolicySpec) -> None:
        """Creates a policy whose weights are all zero: its action is always 0."""
        self.spec = spec
        self._weights: dict[str, np.ndarray] = {}
        self.load(np.zeros(spec.num_floats, np.float32))

    def load(self, flat: np.ndarray) -> None:
        """Sets the weights to a copy."""
        expected = (self.spec.num_floats,)
        if flat.shape != expected or flat.dtype != np.float32:
            raise ValueError(
                f"the policy needs weights of shape {expected} and type float32, but "
                f"got {flat.shape} and {flat.dtype}: learner and actor must have the "
                "same PolicySpec"
            )
        start = 0
        for name, shape in self.spec.variables:
            stop = start + math.prod(shape)
            self._weights[name] = flat[start:stop].reshape(shape).copy()
            start = stop

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Returns actions in [-1, 1], [examples, action_size] float32."""
        spec = self.spec
        dtype = np.uint8 if spec.uses_pixels else np.float32
        if observations.shape[1:] != spec.observation_shape or (
            observations.dtype != dtype
        ):
            raise ValueError(
                f"the policy needs observations of shape [examples, "
                f"{str(spec.observation_shape)[1:-1].rstrip(',')}] and type "
                f"{np.dtype(dtype)}, but got {observations.shape} and "
                f"{observations.dtype}"
            )
        hidden = observations
        if spec.uses_pixels:
            # In small chunks: the windows of a stack of frames are nine times as large.
            parts = [
                self._features(observations[start : start + _MOST_PIXEL_EXAMPLES])
                for start in range(0, len(observations), _MOST_PIXEL_EXAMPLES)
            ]
            hidden = np.concatenate(parts)
        for index in range(len(spec.hidden_sizes)):
            hidden = self._dense(f"dense_{index}", hidden)
            if spec.kind == "mlp":
                hidden = np.maximum(hidden, 0.0)
            elif index == 0:
                hidden = np.tanh(self._norm("norm", hidden))
            else:
                hidden = _elu(hidden)
        actions: np.ndarray = np.tanh(self._dense("action", hidden))
        return actions

    def _features(self, frames: np.ndarray) -> np.ndarray:
        hidden = frames.astype(np.float32) * np.float32(1 / 255)
        for index, stride in enumerate(STRIDES):
            hidden = _elu(self._conv(f"conv_{index}", hidden, stride))
        hidden = self._dense("features", hidden.reshape(len(frames), -1))
        found: np.ndarray = np.tanh(self._norm("features_norm", hidden))
        return found

    def _conv(self, name: str, inputs: np.ndarray, stride: int) -> np.ndarray:
        kernel = self._weights[f"{name}/kernel"]
        size = KERNEL_SIZE
        windows = np.lib.stride_tricks.sliding_window_view(inputs, (size, size), (1, 2))
        # [examples, height, width, channels, rows, columns] in the order of the kernel.
        windows = windows[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)
        columns = windows.reshape(-1, kernel[..., 0].size)
        outputs = columns @ kernel.reshape(columns.shape[1], -1)
        outputs += self._weights[f"{name}/bias"]
        return outputs.reshape(*windows.shape[:3], -1)

    def _dense(self, name: str, inputs: np.ndarray) -> np.ndarray:
        outputs: np.ndarray = inputs @ self._weights[f"{name}/kernel"]
        outputs += self._weights[f"{name}/bias"]
        return outputs

    def _norm(self, name: str, inputs: np.ndarray) -> np.ndarray:
        centred = inputs - inputs.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normalized: np.ndarray = centred / np.sqrt(variance + np.float32(EPSILON))
        return (
            normalized * self._weights[f"{name}/gamma"] + self._weights[f"{name}/beta"]
        )


def _elu(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.expm1(np.minimum(values, 0.0)))

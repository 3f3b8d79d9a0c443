"""Policy, critic and the convolutions they share (Tassa et al. 2018).

The weights of the policy have the order of ``policy.PolicySpec``, for actors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.d4pg.acting import actor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.d4pg.acting.actor import PolicySpec

_SMALL = 3e-3  # limit of the last layers' first weights (Lillicrap et al. 2015)


class _Builder:
    """Creates and builds layers with separate seeds, in the order of construction."""

    def __init__(self, kind: str, seed: int) -> None:
        self._kind = kind
        self._seed = seed

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed

    def _initializer(self) -> keras.initializers.Initializer:
        # Lillicrap et al. 2015: uniform up to 1 / sqrt(inputs). Acme: of the outputs.
        mode = "fan_in" if self._kind == "mlp" else "fan_out"
        return keras.initializers.VarianceScaling(
            1 / 3, mode=mode, distribution="uniform", seed=self._next_seed()
        )

    def dense(self, name: str, num_inputs: int, num_outputs: int) -> keras.layers.Dense:
        layer = keras.layers.Dense(
            num_outputs, kernel_initializer=self._initializer(), name=name
        )
        layer.build((None, num_inputs))
        return layer

    def last_dense(
        self, name: str, num_inputs: int, num_outputs: int
    ) -> keras.layers.Dense:
        layer = keras.layers.Dense(
            num_outputs,
            kernel_initializer=keras.initializers.RandomUniform(
                -_SMALL, _SMALL, seed=self._next_seed()
            ),
            name=name,
        )
        layer.build((None, num_inputs))
        return layer

    def conv(self, index: int, num_inputs: int, num_outputs: int, stride: int) -> Any:
        layer = keras.layers.Conv2D(
            num_outputs,
            actor.KERNEL_SIZE,
            strides=stride,
            activation="elu",
            kernel_initializer=self._initializer(),
            name=f"conv_{index}",
        )
        layer.build((None, None, None, num_inputs))
        return layer

    def norm(self, name: str, size: int) -> keras.layers.LayerNormalization:
        layer = keras.layers.LayerNormalization(epsilon=actor.EPSILON, name=name)
        layer.build((None, size))
        return layer


class Torso(keras.Model):
    """Two convolutions over stacked frames, shared by policy and critic."""

    def __init__(self, spec: PolicySpec, *, seed: int) -> None:
        super().__init__(name="torso")
        make = _Builder("mlp", seed)
        channels = [spec.observation_shape[-1], *(2 * [spec.num_conv_filters])]
        self.convs = [
            make.conv(index, channels[index], channels[index + 1], stride)
            for index, stride in enumerate(actor.STRIDES)
        ]
        self.built = True

    def call(self, frames: Any) -> Any:
        """Returns [examples, conv_size] float32 of stacked uint8 frames."""
        hidden = tf.cast(frames, tf.float32) * (1 / 255)
        for conv in self.convs:
            hidden = conv(hidden)
        return tf.reshape(
            hidden, [-1, hidden.shape[1] * hidden.shape[2] * hidden.shape[3]]
        )


class _Head(keras.Model):
    """The first layer of policy and critic if observations are frames."""

    features: Any = None

    def _build_features(self, make: _Builder, spec: PolicySpec) -> int:
        if not spec.uses_pixels:
            return spec.observation_shape[0]
        self.features = make.dense("features", actor.conv_size(spec), spec.num_features)
        self.features_norm = make.norm("features_norm", spec.num_features)
        return spec.num_features

    def _see(self, inputs: Any) -> Any:
        if self.features is None:
            return inputs
        return tf.nn.tanh(self.features_norm(self.features(inputs)))


class Policy(_Head):
    """Maps states, or outputs of the torso, to actions in [-1, 1]."""

    def __init__(self, spec: PolicySpec, *, seed: int) -> None:
        super().__init__(name="policy")
        make = _Builder(spec.kind, seed)
        width = self._build_features(make, spec)
        self._kind = spec.kind
        self.hidden = []
        self.norms = []
        for index, size in enumerate(spec.hidden_sizes):
            self.hidden.append(make.dense(f"dense_{index}", width, size))
            if index == 0 and spec.kind == "layer_norm_mlp":
                self.norms.append(make.norm("norm", size))
            width = size
        self.action = make.last_dense("action", width, spec.action_size)
        self.built = True

    @property
    def ordered_variables(self) -> list[Any]:
        """Weights in the order of ``PolicySpec.variables``, without the torso's."""
        layers = [] if self.features is None else [self.features, self.features_norm]
        layers += [self.hidden[0], *self.norms, *self.hidden[1:], self.action]
        return [variable for layer in layers for variable in layer.trainable_variables]

    def call(self, inputs: Any) -> Any:
        """Returns [examples, action_size]."""
        hidden = self._see(inputs)
        for index, dense in enumerate(self.hidden):
            hidden = dense(hidden)
            if index == 0 and self.norms:
                hidden = tf.nn.tanh(self.norms[0](hidden))
            else:
                hidden = _activation(self._kind)(hidden)
        return tf.nn.tanh(self.action(hidden))


class Critic(_Head):
    """Maps states, or outputs of the torso, and actions to distributions."""

    def __init__(
        self, spec: PolicySpec, sizes: Sequence[int], *, num_atoms: int, seed: int
    ) -> None:
        super().__init__(name="critic")
        make = _Builder(spec.kind, seed)
        width = self._build_features(make, spec)
        self._kind = spec.kind
        if spec.kind == "layer_norm_mlp":
            width += spec.action_size
        self.hidden = []
        for index, size in enumerate(sizes):
            self.hidden.append(make.dense(f"dense_{index}", width, size))
            width = size
        if spec.kind == "layer_norm_mlp":
            self.norm = make.norm("norm", sizes[0])
        else:
            # A linear layer without a bias: the second layer has one.
            self.joining = keras.layers.Dense(
                sizes[1],
                use_bias=False,
                kernel_initializer=keras.initializers.VarianceScaling(
                    1 / 3,
                    mode="fan_in",
                    distribution="uniform",
                    seed=seed + len(sizes) + 10,
                ),
                name="joining",
            )
            self.joining.build((None, spec.action_size))
        self.logits = make.last_dense("logits", width, num_atoms)
        self.built = True

    def call(self, inputs: Any, actions: Any) -> Any:
        """Returns logits [examples, num_atoms]."""
        hidden = self._see(inputs)
        if self._kind == "layer_norm_mlp":
            hidden = tf.concat([hidden, actions], axis=1)
        for index, dense in enumerate(self.hidden):
            hidden = dense(hidden)
            if index == 0 and self._kind == "layer_norm_mlp":
                hidden = tf.nn.tanh(self.norm(hidden))
                continue
            if index == 1 and self._kind == "mlp":
                hidden = hidden + self.joining(actions)
            hidden = _activation(self._kind)(hidden)
        return self.logits(hidden)


def _activation(kind: str) -> Any:
    return tf.nn.relu if kind == "mlp" else tf.nn.elu

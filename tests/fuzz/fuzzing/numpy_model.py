"""A model in NumPy: the whole batch on one device, derivatives by hand.

The mean over all examples of the squared error is what R replicas minimize together.
Layers that look at one replica's part alone (Keras' own batch norm) get the parts.
"""

from __future__ import annotations

import itertools

import numpy as np
from fuzzing import trainings

Parts = list[np.ndarray]  # one per replica

EPSILON, MOMENTUM = 1e-3, 0.99  # of Keras' batch norm
RATE = 0.125  # which float32 has exactly, as Keras keeps it
_SLOPES = {
    "linear": np.ones_like,
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
}
_ACTIVATIONS = {
    "linear": lambda x: x,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


class Dense:
    """x W + b, and an activation."""

    def __init__(self, layer, num_inputs, rng):
        self._name = layer.activation
        self.weights = [
            rng.uniform(-1, 1, (num_inputs, layer.units)),
            rng.uniform(-1, 1, (layer.units,)),
        ]

    def forward(self, parts):
        self._inputs = parts
        kernel, bias = self.weights
        self._outputs = [_ACTIVATIONS[self._name](x @ kernel + bias) for x in parts]
        return self._outputs

    def backward(self, grads):
        bent = [
            g * _SLOPES[self._name](y)
            for g, y in zip(grads, self._outputs, strict=True)
        ]
        kernel = sum(x.T @ g for x, g in zip(self._inputs, bent, strict=True))
        bias = sum(g.sum(axis=0) for g in bent)
        return [g @ self.weights[0].T for g in bent], [kernel, bias]


class Norm:
    """Batch norm over all parts, or over each by itself."""

    def __init__(self, layer, num_inputs, num_replicas):
        self.is_global = layer.is_global
        self.weights = [np.ones(num_inputs), np.zeros(num_inputs)]
        # Moving mean and variance of each replica.
        self.moving = [
            [np.zeros(num_inputs), np.ones(num_inputs)] for _ in range(num_replicas)
        ]

    def forward(self, parts):
        self._lengths = [len(part) for part in parts]
        groups = [np.concatenate(parts)] if self.is_global else parts
        self._groups = [self._normalize(x) for x in groups]
        for replica, moving in enumerate(self.moving):
            group = self._groups[0 if self.is_global else replica]
            if group is None:
                continue
            for old, new in zip(moving, group[2:], strict=True):
                old[:] = old * MOMENTUM + new * (1 - MOMENTUM)
        outputs = [
            np.zeros((0, len(self.weights[0]))) if g is None else self._scaled(g[0])
            for g in self._groups
        ]
        return self._divided(outputs)

    def _normalize(self, x):
        if not len(x):
            return None
        mean, variance = x.mean(axis=0), x.var(axis=0)
        if x.dtype == np.float32:
            # Sums of other orders are as far apart, which Adam makes of any size where
            # all examples are the mean.
            mean = np.nextafter(mean, np.float32(np.inf))
        scale = 1 / np.sqrt(variance + EPSILON)
        return (x - mean) * scale, scale, mean, variance

    def _scaled(self, normal):
        return normal * self.weights[0] + self.weights[1]

    def _divided(self, groups):
        if not self.is_global:
            return groups
        return np.split(groups[0], np.cumsum(self._lengths)[:-1])

    def backward(self, grads):
        groups = [np.concatenate(grads)] if self.is_global else grads
        found, gamma, beta = [], 0.0, 0.0
        for grad, group in zip(groups, self._groups, strict=True):
            if group is None:
                found.append(grad)
                continue
            normal, scale = group[:2]
            gamma = gamma + (grad * normal).sum(axis=0)
            beta = beta + grad.sum(axis=0)
            inner = grad * self.weights[0]
            found.append(
                scale
                * (inner - inner.mean(axis=0) - normal * (inner * normal).mean(axis=0))
            )
        return self._divided(found), [gamma, beta]


class Model:
    """All layers, the optimizer and its state."""

    def __init__(self, training, rng, dtype=np.float64):
        self.layers = []
        num_inputs = trainings.NUM_FEATURES
        for layer in (*training.layers, trainings.Dense(units=1)):
            if isinstance(layer, trainings.Dense):
                self.layers.append(Dense(layer, num_inputs, rng))
                num_inputs = layer.units
            elif isinstance(layer, trainings.Norm):
                count = training.target.num_replicas
                self.layers.append(Norm(layer, num_inputs, count))
        for layer in self.layers:
            layer.weights = [w.astype(dtype) for w in layer.weights]
        self._dtype = dtype
        self._optimizer = training.optimizer
        self.num_updates = 0
        self.slots = [
            [np.zeros_like(w) for w in self.trained()] for _ in range(2)
        ]  # first and second moments, or the velocity
        self._waiting = []  # Gradients of calls since the last update.

    def trained(self):
        """What gradients update, in the order of Keras."""
        return [w for layer in self.layers for w in layer.weights]

    def outside(self):
        """What the model's variables read as, in the order of Keras."""
        found = []
        for layer in self.layers:
            found += [w.copy() for w in layer.weights]
            if isinstance(layer, Norm):
                found += list(np.mean(layer.moving, axis=0))
        return found

    def assign(self, index, value):
        """Assigns a variable, in the order of ``outside``."""
        for layer in self.layers:
            own = [[w] for w in layer.weights]
            if isinstance(layer, Norm):
                own += [list(column) for column in zip(*layer.moving, strict=True)]
            if index < len(own):
                for copy in own[index]:
                    copy[...] = value
                return
            index -= len(own)
        raise IndexError(index)

    def reset_local(self):
        """Statistics that replicas keep for themselves begin anew."""
        for layer in self.layers:
            if isinstance(layer, Norm) and not layer.is_global:
                for mean, variance in layer.moving:
                    mean[...], variance[...] = 0, 1

    def spread(self, num_replicas):
        """Goes on with another number of replicas: all begin with the mean."""
        for layer in self.layers:
            if isinstance(layer, Norm) and len(layer.moving) != num_replicas:
                mean = np.mean(layer.moving, axis=0)
                layer.moving = [[m.copy() for m in mean] for _ in range(num_replicas)]

    def step(self, parts):
        """One update; returns the mean squared error over all examples."""
        total = max(sum(len(x) for x, _ in parts), 1)
        values = [x.astype(self._dtype) for x, _ in parts]
        for layer in self.layers:
            values = layer.forward(values)
        errors = [y - t for y, (_, t) in zip(values, parts, strict=True)]
        loss = sum((e**2).sum() for e in errors) / total
        grads = [2 * e / total for e in errors]
        by_layer = []
        for layer in reversed(self.layers):
            grads, own = layer.backward(grads)
            by_layer.append(own)
        self._update([g for own in reversed(by_layer) for g in own])
        return float(loss)

    def _update(self, grads):
        clip, name = self._optimizer.clip, self._optimizer.name
        self._waiting.append(grads)
        if len(self._waiting) < self._optimizer.accumulation:
            return
        grads = [np.mean(of, axis=0) for of in zip(*self._waiting, strict=True)]
        self._waiting = []
        if clip is not None:
            norm = np.sqrt(sum((g**2).sum() for g in grads))
            grads = [g * clip / max(norm, clip) for g in grads]
        self.num_updates += 1
        time = self.num_updates
        for w, g, m, v in zip(self.trained(), grads, *self.slots, strict=True):
            if name == "sgd":
                w[...] -= RATE * g
            elif name == "adam":
                m[...] += (g - m) * (1 - 0.9)
                v[...] += (g * g - v) * (1 - 0.999)
                rate = RATE * np.sqrt(1 - 0.999**time) / (1 - 0.9**time)
                w[...] -= rate * m / (np.sqrt(v) + 1e-7)
            else:
                m[...] = 0.9 * m - RATE * g
                w[...] += 0.9 * m - RATE * g if name == "nesterov" else m


def make_data(training):
    rng = np.random.default_rng([3, training.seed])
    x = rng.uniform(-1.5, 1.5, (training.inputs.num_examples, 2))
    t = rng.uniform(-1.5, 1.5, (training.inputs.num_examples, 1))
    return x.astype(training.dtype), t.astype(training.dtype)


def parts_of(inputs, batch, num_replicas, start):
    """Examples of each replica in the step that begins at one; None at the end."""
    stop = min(start + batch, inputs.num_examples)
    own = np.arange(start, stop)
    if not len(own) or (len(own) < batch and not inputs.is_split):
        return None
    if not inputs.is_split:
        # Each pipeline shards before it batches; one pipeline deals whole batches.
        if inputs.mode == "PER_REPLICA":
            return [own[r::num_replicas] for r in range(num_replicas)]
        return list(np.split(own, num_replicas))
    cuts = [len(own) * r // num_replicas for r in range(num_replicas + 1)]
    return [own[a:b] for a, b in itertools.pairwise(cuts)]

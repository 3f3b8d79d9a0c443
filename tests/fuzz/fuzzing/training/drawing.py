"""Draws trainings."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzzing.choices import Choices
from fuzzing.training import syntax

FEATURES = (
    "clips",
    "failures",
    "foreign",
    "norms",
    "options",
    "precision",
    "queues",
    "recomputed",
    "restores",
)
MAX_ACTIONS = 5
LEVELS = ("state", "gradients", "parameters")


@st.composite
def trainings(draw, features=FEATURES):
    return _Drawer(draw, features).training()


class _Drawer(Choices):
    def _choose(self, *options):
        return self.choose(options)

    def training(self):
        target = self._target()
        inputs = self._inputs(target)
        layers = [self._layer() for _ in range(self._choose(1, 2, 0))]
        if self._choose(*[False] * 9, *self.also("recomputed", True)):
            by = self._choose("tf", "keras")
            layers += [syntax.Dense(units=2), syntax.Recomputed(by=by)]
        optimizer = self._optimizer()
        count = self._choose(*range(1, MAX_ACTIONS + 1))
        actions = [self._action(inputs, optimizer) for _ in range(count)]
        # What a failed step leaves of an accumulation is not documented.
        can_fail = optimizer.accumulation == 1
        is_poisoned = can_fail and self._choose(False, *self.also("failures", True))
        return syntax.Training(
            layers=tuple(layers),
            optimizer=optimizer,
            inputs=inputs,
            target=target,
            actions=tuple(actions),
            poison=self._choose(*range(inputs.num_examples)) if is_poisoned else None,
            dtype=self._choose("float32", *self.also("precision", "float64")),
            seed=self._choose(*range(20)),
        )

    def _target(self):
        return syntax.Target(
            num_replicas=self._choose(2, 3, 1), is_mirrored=self._choose(False, True)
        )

    def _batch(self, target):
        return target.num_replicas * self._choose(1, 2, 3)

    def _inputs(self, target):
        return syntax.Inputs(
            num_examples=self._choose(*range(4, 20)),
            batch=self._batch(target),
            is_split=self._choose(True, False),
            is_generator=self._choose(False, *self.also("failures", True)),
            mode=self._choose("PER_WORKER", "PER_REPLICA", "SINGLE"),
            prefetch=self._choose(0, 0, 2),
        )

    def _layer(self):
        activation = self._choose("tanh", "sigmoid", "linear")
        return self._choose(
            syntax.Dense(units=2, activation=activation),
            syntax.Dropout(),
            *self.also("norms", syntax.Norm(), syntax.Norm(is_global=False)),
            *self.also("queues", syntax.Queue()),
        )

    def _optimizer(self):
        options = "options" in self.features
        clips = self.also("clips", "clip_by_global_norm", "clip_by_norm")
        return syntax.Optimizer(
            name=self._choose("sgd", "momentum", "nesterov", "adam"),
            clip=self._choose(None, 0.5) if options else None,
            loss_scale=self._choose(None, 1024.0, "dynamic") if options else None,
            clips_before=self._choose(*[None] * 9, *clips),
            accumulation=self._choose(1, 1, 1, 2, 3) if options else 1,
            sharded=self._choose(*[False] * 3, *LEVELS) if options else False,
        )

    def _action(self, inputs, optimizer):
        target = self._target()
        batch = self._batch(target)
        restore = syntax.Restore(target=target, batch=batch)
        is_of_one = optimizer.accumulation == 1 and not optimizer.sharded
        foreign = "foreign" if is_of_one else "none"
        return self._choose(
            syntax.Run(),
            syntax.Run(num_steps=self._choose(2, 3, 6)),
            syntax.Run(is_next=True),
            syntax.Assign(
                index=self._choose(0, 1, 2, 3, 4, 5),
                kind=self._choose("same", "zeros", "new"),
            ),
            *self.also("restores", *[restore] * 2),
            *self.also(
                foreign,
                syntax.Single(),
                syntax.Foreign(
                    what=self._choose("inputs", "values", "optimizer"),
                    num_replicas=self._choose(1, 2, 3),
                ),
            ),
            *([syntax.Full()] if optimizer.loss_scale == "dynamic" else []),
        )

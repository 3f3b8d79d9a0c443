"""The program of D4PG: actors, replay and a replicated learner."""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import json
import math
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import replicator
from replicator import catalog
from workloads import program, quality
from workloads.catalog import SYNTHETIC, CatalogWorkload
from workloads.common import training
from workloads.d4pg import capacity, control, metrics, networks
from workloads.d4pg.actor import PolicySpec
from workloads.d4pg.evaluator import EvaluatorClient
from workloads.d4pg.experience import Experience
from workloads.d4pg.learner import Learner
from workloads.d4pg.pool import Counters
from workloads.program import ReplicatedProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from workloads.d4pg.config import D4PGConfig
    from workloads.spec import QualityMetric


# A fixed set of transitions replaces replay, and is sampled uniformly. The same
# seed gives the same batches, on every backend and machine.

# Those of walker, a body of medium size.
STATE_SIZE, ACTION_SIZE = 24, 6
_NUM_STATES, _NUM_FRAMES = 4096, 64


def make_transitions(
    spec: PolicySpec, *, discount: float, num_return_steps: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns transitions as from replay; rewards are in [0, 1], as in the suite."""
    rng = np.random.default_rng(seed)
    count = _NUM_FRAMES if spec.uses_pixels else _NUM_STATES
    shape = (count, *spec.observation_shape)

    def observe() -> np.ndarray:
        if spec.uses_pixels:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.standard_normal(shape, dtype=np.float32)

    rewards = rng.uniform(size=(count, num_return_steps))
    weights = discount ** np.arange(num_return_steps)
    return {
        "observation": observe(),
        "action": rng.uniform(-1, 1, (count, spec.action_size)).astype(np.float32),
        "reward": (rewards @ weights).astype(np.float32),
        "discount": np.full(count, weights[-1], np.float32),
        "next_observation": observe(),
        "index": np.arange(count),
        "probability": np.full(count, 1 / count, np.float32),
    }


def dataset(
    transitions: dict[str, np.ndarray],
    context: replicator.InputContext,
    *,
    per_replica_batch_size: int,
    seed: int,
) -> tf.data.Dataset:
    """Returns an infinite pipeline of batches that are sampled with replacement."""
    store = {name: tf.constant(values) for name, values in transitions.items()}
    count = len(transitions["reward"])

    def draw(number: Any) -> dict[str, Any]:
        index = tf.random.stateless_uniform(
            [per_replica_batch_size],
            seed=tf.stack(
                [tf.constant(seed + context.input_pipeline_id, tf.int64), number]
            ),
            maxval=count,
            dtype=tf.int32,
        )
        return {name: tf.gather(values, index) for name, values in store.items()}

    return tf.data.Dataset.counter().map(draw).prefetch(2)


# Above this fraction of clipped targets, a warning says that the atoms are badly
# chosen.
_MOST_CLIPPED = 0.05
# Learner steps whose clipping and policy lag are kept for a window's figures.
_NUM_RECENT = 1_000
_NUM_CHANNELS = 3


class D4PGProgram(ReplicatedProgram):
    """D4PG on one replicator; a step is a learner step."""

    # Actors and replay of each pipeline of this process; none with synthetic data.
    experiences: list[Experience]

    def __init__(
        self,
        repl: replicator.Replicator,
        config: D4PGConfig,
        *,
        name: str | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        """Creates networks, and starts the actors."""
        super().__init__(repl, per_replica_batch_size=per_replica_batch_size)
        if name is not None:
            capacity.check_learning(config, global_batch_size=self.global_batch_size)
        self._config = config
        self._name = name
        self._seed = seed
        self._evaluator = (
            None if name is None else EvaluatorClient(name, config, seed=seed)
        )
        self._spec = _policy_spec(config, self._evaluator)
        if self._evaluator is not None:
            self._evaluator.load(self._spec)
        self.learner = Learner(repl, config, self._spec, seed=seed)
        self.num_parameters = self.learner.num_parameters
        self.flops_per_example = networks.training_flops(config, self._spec)
        self.experiences = []
        self._inputs = program.make_iterator(
            repl, self._input_fn, _input_mode(repl, name)
        )
        atexit.register(self.close)
        self._clipped: collections.deque[Any] = collections.deque(maxlen=_NUM_RECENT)
        self._lags: collections.deque[float] = collections.deque(maxlen=_NUM_RECENT)
        self._window = Window(self._now)

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        count = self.pipeline_batch_size
        # A control that reads one batch needs no actors, which would take its cores.
        if self._name is None or self._evaluator is None or self.reuses_batch:
            transitions = make_transitions(
                self._spec,
                discount=self._config.discount,
                num_return_steps=self._config.num_return_steps,
                seed=self._seed,
            )
            return dataset(
                transitions, context, per_replica_batch_size=count, seed=self._seed
            )
        experience = Experience(
            self._name,
            self._config,
            self._evaluator.spec,
            self._spec,
            context=context,
            seed=self._seed,
        )
        self.experiences.append(experience)
        batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
        return experience.dataset(
            per_replica_batch_size=count, num_prefetched=max(batches_per_step, 1)
        )

    def batches(self) -> Iterator[Any]:
        """Reads the batches of all replicas without learning from them."""
        while True:
            yield self._inputs.get_next()

    def run(self, num_steps: int = 1) -> float:
        """Runs learner steps and returns the critic's last loss, over the global batch.

        The value is a cross-entropy in nats: the logarithm of the number of atoms for a
        uniform prediction.
        """
        loss = math.nan
        for _ in range(num_steps):
            loss = self._run_one()
        return loss

    def read(self, num_steps: int = 1) -> None:
        """Reads batches from replay; see ``ReplicatedProgram.read``."""
        with self._sampling():
            super().read(num_steps)
        self._num_steps += num_steps

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """Checks actors and replay before batches are read, and after a failure."""
        for experience in self.experiences:
            experience.check()
        try:
            yield
        except tf.errors.OpError:
            for experience in self.experiences:
                experience.explain_failure()
            raise

    def _run_one(self) -> float:
        with self._sampling():
            outputs = self.learner.run(self._inputs)
        loss = self._keep_losses(outputs["loss"])
        self._num_steps += 1
        if not math.isfinite(loss):
            # The caller stops here; actors keep the last finite weights.
            return loss
        if not all(math.isfinite(float(value)) for value in outputs["value"]):
            # The critic's loss would not show it before the targets are copied.
            raise FloatingPointError(
                "the policy's actions have no finite value in learner step "
                f"{self._num_steps - 1}: lower option policy_learning_rate="
                f"{self._config.policy_learning_rate!r}"
            )
        self._clipped.append(outputs["clipped"])
        for experience in self.experiences:
            self._lags.append(self._num_steps - experience.policy_version())
        if self._config.replay == "prioritized":
            for experience in self.experiences:
                for index, error in zip(
                    outputs["index"], outputs["divergence"], strict=True
                ):
                    experience.replay.update_priorities(index.numpy(), error.numpy())
        if self._num_steps % self._config.publish_period == 0:
            self._publish()
        return loss

    def _publish(self) -> None:
        if self.experiences:
            weights = self.learner.policy_weights()
            for experience in self.experiences:
                experience.publish(weights, self._num_steps)

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures the mean return of episodes without noise.

        Every process plays its own episodes; synthetic data has none.
        """
        if self._evaluator is None:
            return ()
        return self._evaluator.score(self.learner.policy_weights())

    def samples(self) -> bytes | None:
        """Returns a film of one episode, as animated PNG, or None without OpenGL."""
        if self._evaluator is None:
            return None
        return self._evaluator.film(self.learner.policy_weights())

    def _trackables(self) -> Mapping[str, Any]:
        return self.learner.trackables

    def start_window(self) -> None:
        """Starts a window; see ``StepProgram.start_window``."""
        self._clipped.clear()
        self._lags.clear()
        self._window = Window(self._now)

    def pause(self) -> None:
        """Stops actors and replay; the time until ``resume`` is not measured."""
        for experience in self.experiences:
            experience.pause()
        self._window.pause()

    def resume(self) -> None:
        """Continues what ``pause`` stopped."""
        self._window.resume()
        for experience in self.experiences:
            experience.resume()

    def _now(self) -> dict[str, float]:
        return describe_now(self._num_steps, self._count())

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns rates of learner and actors since ``start_window``.

        Warns if a large part of the targets is outside the atoms.
        """
        values = [float(v) for clipped in self._clipped for v in clipped]
        clipped = sum(values) / max(len(values), 1)
        if clipped > _MOST_CLIPPED:
            low, high = self._config.lowest_return, self._config.highest_return
            warnings.warn(
                f"{clipped:.0%} of the target distributions' probability lies outside "
                f"the atoms, from {low:g} to {high:g}: set options lowest_return and "
                "highest_return to the range of discounted returns",
                stacklevel=2,
            )
        policy_lag = sum(self._lags) / max(len(self._lags), 1)
        counted = {**self._window.changes(), "num_pipelines": len(self.experiences)}
        counted |= {"clipped": clipped, "policy_lag": policy_lag}
        mine = json.dumps(counted).encode("ascii")
        found = [json.loads(text) for text in self._repl.gather_bytes(mine)]
        return describe(found, global_batch_size=self.global_batch_size)

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of all actors of the trial so far."""
        if self._name is None:
            return None
        mine = sum(counters.num_environment_steps for counters in self._count())
        found = self._repl.gather_bytes(str(mine).encode("ascii"))
        return sum(int(text) for text in found)

    def _count(self) -> list[Counters]:
        return [experience.counters() for experience in self.experiences]

    def close(self) -> None:
        """Terminates actors and environments; the exit of the process does so too."""
        for experience in self.experiences:
            experience.close()
        if self._evaluator is not None:
            self._evaluator.close()
        atexit.unregister(self.close)


def describe_now(num_steps: int, counters: Sequence[Counters]) -> dict[str, float]:
    """Returns the time and the counters of one process, added up over its pipelines."""
    return {
        "window_sec": time.monotonic(),
        "num_learner_steps": float(num_steps),
        **{
            field.name: float(sum(getattr(found, field.name) for found in counters))
            for field in dataclasses.fields(Counters)
        },
    }


class Window:
    """Changes of counters since a point in time, without the pauses since."""

    def __init__(self, read: Callable[[], dict[str, float]]) -> None:
        self._read = read
        self._start: dict[str, float] | None = read()
        self._before = dict.fromkeys(self._start, 0.0)

    def pause(self) -> None:
        """Counts nothing until ``resume``."""
        self._before, self._start = self.changes(), None

    def resume(self) -> None:
        """Continues to count."""
        self._start = self._read()

    def changes(self) -> dict[str, float]:
        """Returns the changes so far."""
        if self._start is None:
            return self._before
        now, start = self._read(), self._start
        return {name: self._before[name] + now[name] - start[name] for name in now}


def describe(
    processes: Sequence[Mapping[str, float]], *, global_batch_size: int
) -> tuple[QualityMetric, ...]:
    """Returns the figures of a trial from those of its processes."""
    window_sec = max(process["window_sec"] for process in processes)
    num_steps = int(processes[0]["num_learner_steps"])
    if not num_steps or window_sec <= 0:
        return ()
    totals = {
        **{name: sum(of[name] for of in processes) for name in processes[0]},
        "window_sec": window_sec,
        "num_learner_steps": num_steps,
        "num_transitions": num_steps * global_batch_size,
        "num_processes": len(processes),
    }
    found = ((metric, metric.of(totals)) for metric in metrics.OF_WINDOW if metric.of)
    return tuple(
        quality.counted(metric, value, num_examples=num_steps)
        for metric, value in found
        if value is not None
    )


def _policy_spec(config: D4PGConfig, evaluator: EvaluatorClient | None) -> PolicySpec:
    shape: tuple[int, ...] = (STATE_SIZE,)
    action_size = ACTION_SIZE
    if evaluator is not None:
        shape = evaluator.spec.observation_shape
        action_size = evaluator.spec.action_size
    if config.observations == "pixels":
        size = control.FRAME_SIZE
        shape = (size, size, _NUM_CHANNELS * config.num_stacked_frames)
    return PolicySpec(
        observation_shape=shape,
        action_size=action_size,
        hidden_sizes=config.policy_layers,
        kind=config.network,
        num_conv_filters=config.num_conv_filters,
        num_features=config.num_features,
    )


def _input_mode(
    repl: replicator.Replicator, name: str | None
) -> replicator.InputReplicationMode:
    """Returns the number of actor pools and replays: one per learner process."""
    modes = replicator.InputReplicationMode
    if name is None or repl.num_programs == repl.num_workers:
        return modes.PER_WORKER
    if "input_single" in catalog.entry_of(type(repl)).lacks:
        raise ValueError(
            f"data {name!r} needs actors beside each learner, but the workers of "
            f"{type(repl).__name__} only serve TensorFlow: use --data synthetic there, "
            "or a backend such as multi_worker"
        )
    return modes.SINGLE


class D4PGWorkload(CatalogWorkload):
    """The catalogue's ``d4pg``."""

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> D4PGProgram:
        """Builds D4PG on ``replicator``; see ``Workload.build``."""
        config = self.make_config(preset, options)
        training.set_tf32(replicator, is_on=config.tf32)
        if data != SYNTHETIC:
            control.check(data)
        return D4PGProgram(
            replicator,
            config,
            name=None if data == SYNTHETIC else data,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )


WORKLOAD = D4PGWorkload("d4pg")

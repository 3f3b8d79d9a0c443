"""How fast actors step, render and write, and how fast replay is sampled.

    python -m benchmarks.bench_d4pg [--repeats N]

Everything on one core, in one process per part; the kinds of a part are measured one
after the other, in reversed order every other repeat, and ratios are paired within a
repeat. An actor's rate includes writing its records to the streams.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import runner
from workloads import child_process
from workloads.d4pg.actor import Actor, ActorSettings, PolicySpec
from workloads.d4pg.control import FRAME_SIZE, Environment
from workloads.d4pg.replay import ReplaySettings, make_replay
from workloads.d4pg.streams import SharedWeights, StepStreams, StreamsSpec

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "cartpole:swingup"
EPISODE = 1001  # records: 1000 environment steps and the final observation
NUM_STEPS = 4000
NUM_FRAMES = 1000
NUM_BATCHES = 300
BATCH = 256
ENVIRONMENTS_PER_ACTOR = 4
FRAME_BYTES = FRAME_SIZE * FRAME_SIZE * 3
# The published policy, on the largest and the smallest state that is measured.
HIDDEN_SIZES = (300, 200)
LEAST_SHARE = {"random": 0.8, "policy": 0.4}
LEAST_FRAMES = 300
LEAST_SAMPLES = 50_000
MOST_FRAMES_PER_TRANSITION = 1.15


def main() -> None:
    """Measures each part in a process of its own and prints the figures."""
    arguments = runner.make_parser(__doc__, num_repeats=5).parse_args()
    found = {
        part: runner.measure(
            measure,
            arguments={"part": part, "num_repeats": arguments.num_repeats},
            cores=runner.CORES[:1],
            variables=child_process.ONE_THREAD,  # as the pool starts actors
        )
        for part in PARTS
    }
    state = found["state"]
    for kind, rates in state.items():
        runner.print_value(f"{NAME} {kind}", rates, "environment steps/s")
    for kind, least in LEAST_SHARE.items():
        title = f"actor, {kind} / raw dm_control"
        runner.print_ratio(title, state[kind], state["raw"], at_least=least)
    _print_rates("rendered and written, ", found["pixels"], "frames/s", LEAST_FRAMES)
    pixels = {"pixels": found["replay"].pop("pixels")}
    _print_rates("sampled, ", found["replay"], "transitions/s", LEAST_SAMPLES)
    _print_rates("sampled, ", pixels, "transitions/s", None)
    print(
        f"pixel memory per transition: {_frames_per_transition():.3f} frames; target "
        f"at most {MOST_FRAMES_PER_TRANSITION}"
    )


def measure(part: str, num_repeats: int) -> dict[str, list[float]]:
    """Rates of the kinds of a part; the first round is not counted."""
    return runner.take_turns(PARTS[part](), num_repeats, num_warmups=1)


def _print_rates(
    title: str, rates: dict[str, list[float]], unit: str, least: float | None
) -> None:
    for kind, values in rates.items():
        runner.print_value(title + kind, values, unit, at_least=least)


def _state() -> dict[str, Callable[[], float]]:
    """Environment steps per second: dm_control alone, and actors."""
    raw = Environment(NAME, seed=0)._env  # noqa: SLF001 - dm_control's own
    actions = np.random.default_rng(0).uniform(-1, 1, (NUM_STEPS, 1))

    def step_raw() -> float:
        start = time.perf_counter()
        for action in actions:
            raw.step(action)
        return NUM_STEPS / (time.perf_counter() - start)

    return {
        "raw": step_raw,
        "random": _actor_rate("state", has_policy=False, num_steps=NUM_STEPS),
        "policy": _actor_rate("state", has_policy=True, num_steps=NUM_STEPS),
    }


def _pixels() -> dict[str, Callable[[], float]]:
    """Frames per second that an actor steps to, renders and writes."""
    step = _actor_rate("pixels", has_policy=False, num_steps=NUM_FRAMES)
    return {"random actions": step}


def _actor_rate(
    observations: str, *, has_policy: bool, num_steps: int
) -> Callable[[], float]:
    spec = Environment(NAME, observations=observations).spec
    policy = PolicySpec(
        observation_shape=spec.observation_shape,
        action_size=spec.action_size,
        hidden_sizes=HIDDEN_SIZES,
        kind="mlp",
    )
    settings = ActorSettings(
        name=NAME,
        observations=observations,
        environments_per_actor=ENVIRONMENTS_PER_ACTOR,
        policy=policy if has_policy else None,
    )
    streams = _streams(spec.observation_shape, spec.observation_dtype, 1000)
    weights = SharedWeights(policy.num_floats)
    flat = np.random.default_rng(0).normal(0, 0.05, policy.num_floats)
    weights.publish(flat.astype(np.float32), 0)
    actor = Actor(settings, streams, weights, actor_id=0)

    def step() -> float:
        start = time.perf_counter()
        for _ in range(num_steps // ENVIRONMENTS_PER_ACTOR):
            actor.step()
        return num_steps / (time.perf_counter() - start)

    return step


def _streams(shape: tuple[int, ...], dtype: str, steps_per_stream: int) -> StepStreams:
    return StepStreams(
        StreamsSpec(
            num_streams=ENVIRONMENTS_PER_ACTOR,
            steps_per_stream=steps_per_stream,
            observation_shape=shape,
            observation_dtype=dtype,
            action_size=1,
        )
    )


def _fill(streams: StepStreams, num_records: int) -> None:
    """Writes episodes of 1000 environment steps to each stream."""
    observation = np.ones(streams.spec.observation_shape)
    for stream_id in range(streams.spec.num_streams):
        writer = streams.writer(stream_id)
        for number in range(num_records):
            writer.append(
                observation,
                0.0,
                1.0,
                1.0,
                is_first=number % EPISODE == 0,
                is_last=number % EPISODE == EPISODE - 1,
            )


def _replay() -> dict[str, Callable[[], float]]:
    """Transitions per second in batches of 256, from a replay of 100,000 steps."""
    state = _streams((24,), "float32", 25_000)
    _fill(state, 25_000)
    frames = _streams((FRAME_SIZE, FRAME_SIZE, 3), "uint8", 2500)
    _fill(frames, 2500)
    kinds: dict[str, Any] = {
        "uniform": make_replay(state, ReplaySettings()),
        "prioritized": make_replay(state, ReplaySettings(is_prioritized=True)),
        "pixels": make_replay(frames, ReplaySettings(num_stacked_frames=3)),
    }
    errors = np.random.default_rng(0).gamma(1, 1, BATCH)

    def sample(kind: str) -> float:
        replay = kinds[kind]
        num_batches = NUM_BATCHES // 20 if kind == "pixels" else NUM_BATCHES
        start = time.perf_counter()
        for _ in range(num_batches):
            replay.update_priorities(replay.sample(BATCH)["index"], errors)
        return num_batches * BATCH / (time.perf_counter() - start)

    return {kind: functools.partial(sample, kind) for kind in kinds}


def _frames_per_transition() -> float:
    """Memory of a full replay of frames, as frames per transition that is there."""
    streams = _streams((FRAME_SIZE, FRAME_SIZE, 3), "uint8", 2500)
    replay = make_replay(streams, ReplaySettings(num_stacked_frames=3))
    # Only counted: no frame is read.
    streams.num_written[:] = 10_000
    return streams.spec.memory_bytes / len(replay) / FRAME_BYTES


PARTS: dict[str, Callable[[], dict[str, Callable[[], float]]]] = {
    "state": _state,
    "pixels": _pixels,
    "replay": _replay,
}


if __name__ == "__main__":
    main()

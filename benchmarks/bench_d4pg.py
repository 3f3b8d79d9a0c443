"""How fast actors step, render and write, and how fast replay is sampled.

    python -m benchmarks.bench_d4pg [--repeats N]

Everything on one core, in one process per part; the kinds of a part are measured one
after the other, in reversed order every other repeat, and ratios are paired within a
repeat. An actor's rate includes writing its records to the streams.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.runner import Figure
from workloads import ONE_THREAD, d4pg

NAME = "cartpole:swingup"
EPISODE = 1001  # records: 1000 environment steps and the final observation
NUM_STEPS, NUM_FRAMES, NUM_BATCHES, BATCH = 4000, 1000, 300, 256
ENVIRONMENTS_PER_ACTOR = 4
FRAMES = (84, 84, 3), "uint8", 2500
FROM_PIXELS = d4pg.D4PGConfig(replay="uniform", observations="pixels")
STEPS, SAMPLES = "environment steps/s", "transitions/s"
FIGURES = (
    *(Figure(f"{NAME} {of}", (of,), unit=STEPS) for of in ("raw", "random", "policy")),
    *(
        Figure(f"actor, {kind} / raw dm_control", (kind,), ("raw",), at_least=least)
        for kind, least in (("random", 0.8), ("policy", 0.4))
    ),
    Figure(
        "rendered and written, random actions",
        ("rendered",),
        unit="frames/s",
        at_least=300,
    ),
    *(
        Figure(f"sampled, {kind}", (kind,), unit=SAMPLES, at_least=least)
        for kind, least in (
            ("uniform", 50_000),
            ("prioritized", 50_000),
            ("pixels", None),
        )
    ),
)


def main() -> None:
    given = runner.make_parser(__doc__, num_repeats=5).parse_args()
    figures: dict[str, list[float]] = {}
    for part in PARTS:
        figures |= runner.measure(
            measure,
            part=part,
            num_repeats=given.num_repeats,
            cores=runner.CORES[:1],
            variables=ONE_THREAD,  # as the pool starts actors
        )
    runner.print_figures(FIGURES, figures)


def measure(part: str, num_repeats: int) -> dict[str, list[float]]:
    """Rates of the kinds of a part; the first round is not counted."""
    blocks = {
        kind: lambda call=call, number=number: number / runner.seconds(call)
        for kind, (call, number) in PARTS[part]().items()
    }
    return runner.interleave(blocks, num_repeats, num_warmups=1)


def _state() -> dict[str, tuple[Callable[[], None], int]]:
    raw = d4pg.Environment(NAME, d4pg.D4PGConfig())._env  # noqa: SLF001 - dm_control's own
    actions = np.random.default_rng(0).uniform(-1, 1, (NUM_STEPS, 1))

    def step_raw() -> None:
        for action in actions:
            raw.step(action)

    return {
        "raw": (step_raw, NUM_STEPS),
        "random": (_actor("state", NUM_STEPS, has_policy=False), NUM_STEPS),
        "policy": (_actor("state", NUM_STEPS, has_policy=True), NUM_STEPS),
    }


def _pixels() -> dict[str, tuple[Callable[[], None], int]]:
    return {"rendered": (_actor("pixels", NUM_FRAMES, has_policy=False), NUM_FRAMES)}


def _actor(
    observations: str, num_steps: int, *, has_policy: bool
) -> Callable[[], None]:
    spec = d4pg.Environment(NAME, d4pg.D4PGConfig(observations=observations)).spec
    settings = d4pg.ActorSettings(
        name=NAME,
        config=d4pg.D4PGConfig(
            observations=observations, environments_per_actor=ENVIRONMENTS_PER_ACTOR
        ),
    )
    streams = _streams(spec, 1000)
    weights = _weights(spec, settings.config) if has_policy else None
    actor = d4pg.Actor(settings, streams, weights, actor_id=0)

    def step() -> None:
        for _ in range(num_steps // ENVIRONMENTS_PER_ACTOR):
            actor.step()

    return step


def _weights(spec: d4pg.EnvironmentSpec, config: d4pg.D4PGConfig) -> d4pg.SharedWeights:
    """Those of a policy of states, drawn at random."""
    layers = [f"dense_{index}" for index in range(len(config.policy_layers))]
    sizes = (*spec.observation_shape, *config.policy_layers, spec.action_size)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, *size in zip((*layers, "action"), sizes, sizes[1:], strict=False):
        shapes |= {f"{name}/kernel": (*size,), f"{name}/bias": (size[1],)}
    weights, normal = d4pg.SharedWeights(shapes), np.random.default_rng(0).normal
    weights.publish(
        {
            name: normal(0, 0.05, shape).astype(np.float32)
            for name, shape in shapes.items()
        },
        0,
    )
    return weights


def _streams(spec: d4pg.EnvironmentSpec, steps_per_stream: int) -> d4pg.StepStreams:
    share = d4pg.Share(
        num_actors=1,
        num_streams=ENVIRONMENTS_PER_ACTOR,
        steps_per_stream=steps_per_stream,
        min_size=1,
    )
    return d4pg.StepStreams(share, spec)


def _filled(shape: tuple[int, ...], dtype: str, num_records: int) -> d4pg.StepStreams:
    """Streams that are full of episodes of 1000 environment steps."""
    spec = d4pg.EnvironmentSpec(
        observation_shape=shape, observation_dtype=dtype, action_size=1
    )
    streams = _streams(spec, num_records)
    observation = np.ones(shape)
    for stream_id in range(streams.share.num_streams):
        write = streams.writer(stream_id)
        for number in range(num_records):
            place = number % EPISODE
            write(observation, 0.0, 1.0, 1.0, place == 0, place == EPISODE - 1)
    return streams


def _replay() -> dict[str, tuple[Callable[[], None], int]]:
    state = _filled((24,), "float32", 25_000)
    uniform = d4pg.D4PGConfig(replay="uniform")
    frames = _filled(*FRAMES)
    errors = np.random.default_rng(0).gamma(1, 1, BATCH)

    def sample(replay: Any, num_batches: int) -> None:
        for _ in range(num_batches):
            replay.update_priorities(replay.sample(BATCH)["index"], errors)

    parts = {}
    for kind, streams, config, number in (
        ("uniform", state, uniform, NUM_BATCHES),
        ("prioritized", state, d4pg.D4PGConfig(), NUM_BATCHES),
        ("pixels", frames, FROM_PIXELS, NUM_BATCHES // 20),
    ):
        replay = d4pg.make_replay(streams, config, min_size=1000)
        parts[kind] = functools.partial(sample, replay, number), number * BATCH
    return parts


PARTS: dict[str, Callable[[], dict[str, tuple[Callable[[], None], int]]]] = {
    "state": _state,
    "pixels": _pixels,
    "replay": _replay,
}


if __name__ == "__main__":
    main()

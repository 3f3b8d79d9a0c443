"""Checks that this machine can run a plan of D4PG; without TensorFlow.

Problems that a trial would find after minutes are reported before: missing OpenGL, or
too little memory for the replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.catalog import SYNTHETIC
from workloads.d4pg.config import make_config
from workloads.d4pg.evaluation.evaluator_client import EvaluatorClient
from workloads.d4pg.replay import streams as streams_lib
from workloads.d4pg.replay import transitions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.d4pg.config import D4PGConfig
    from workloads.d4pg.environment.control import EnvironmentSpec


def check(
    preset: str,
    options: Mapping[str, Any],
    *,
    data: str,
    global_batch_size: int,
    num_workers: int = 1,
) -> None:
    """Raises unless a trial could run its environment, replay and learner.

    Creates the environment once, in a separate process, which takes about 2 s.
    """
    config = make_config(preset, options)
    if data == SYNTHETIC:
        return
    transitions.check_learning(config, global_batch_size=global_batch_size)
    transitions.check_rings(config, num_pipelines=num_workers)
    environment = _make_environment(data, config)
    streams = streams_lib.streams_spec(
        config,
        environment,
        num_actors=config.num_actors,
        capacity=config.replay_capacity,
    )
    streams_lib.check(config, streams)


def _make_environment(name: str, config: D4PGConfig) -> EnvironmentSpec:
    try:
        # Output of libraries on a missing driver is in the error.
        client = EvaluatorClient(name, config, seed=0, is_quiet=True)
    except RuntimeError as error:
        raise ValueError(
            f"data {name!r} cannot be created here ({error}): check the installation "
            "of dm-control and mujoco"
        ) from error
    client.close()
    return client.spec

"""Whether this machine can run a plan of D4PG; imports no TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.spec import SYNTHETIC

from . import capacity
from .evaluator import EvaluatorClient
from .study import WORKLOAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .control import EnvironmentSpec
    from .study import D4PGConfig


def check(
    preset: str,
    options: Mapping[str, Any],
    *,
    data: str,
    global_batch_size: int,
    num_workers: int = 1,
) -> None:
    """Raises unless a trial could run its environment, replay and learner here.

    Problems that it would find after minutes: missing OpenGL, or too little memory.

    Creates the environment once, in a separate process, which takes about 2 s.
    """
    config = WORKLOAD.make_config(preset, options)
    if data == SYNTHETIC:
        return
    capacity.check_learning(config, global_batch_size=global_batch_size)
    capacity.check_rings(config, num_pipelines=num_workers)
    environment = _make_environment(data, config)
    capacity.check_memory(
        config, capacity.streams_spec(config, environment, capacity.share(config, 0, 1))
    )


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

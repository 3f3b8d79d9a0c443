"""Where a step can be compiled as a whole: checks before it is traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicator.catalog import BACKENDS, entry_of
from replicator.errors import CompiledStepError
from replicator.placement import devices as device_lib
from replicator.step.compiled import CompiledStep
from replicator.validation.user_functions import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPABILITY = "compiled_steps"


def check_backend(replicator: Any, step_fn: Any) -> None:
    """Rejects a compiled step on a backend that has none.

    Args:
      replicator: The replicator that is to run it.
      step_fn: Any step function.

    Raises:
      CompiledStepError: Gives the reason, and the backends that have them.
    """
    if not isinstance(step_fn, CompiledStep):
        return
    try:
        info = entry_of(type(replicator))
    except LookupError:  # a backend of the user's own
        return
    if CAPABILITY in info.lacks:
        able = [n for n, other in BACKENDS.items() if CAPABILITY not in other.lacks]
        raise CompiledStepError(
            f"step {name_of(step_fn)!r} is a CompiledStep, which backend "
            f"{info.name!r} does not run: {info.lacks[CAPABILITY]}; use "
            f"{', '.join(able)}, or pass the function itself"
        )


def check_devices(
    step_fn: Any, devices: Sequence[str], *, has_virtual_gpus: bool = False
) -> None:
    """Rejects devices whose programs of XLA cannot communicate.

    Args:
      step_fn: The step.
      devices: The first device of each replica.
      has_virtual_gpus: Whether some of them are parts of one physical GPU.

    Raises:
      CompiledStepError: Names the devices, and what to do.
    """
    if len(devices) == 1:
        return
    start = f"step {name_of(step_fn)!r} is a CompiledStep of {len(devices)} replicas"
    if not all(map(device_lib.is_gpu, devices)):
        raise CompiledStepError(
            f"{start} on {', '.join(dict.fromkeys(devices))}, but TensorFlow runs the "
            "collectives of XLA on GPUs only; use GPUs, or one replica, or pass the "
            "function itself"
        )
    if has_virtual_gpus or len(set(devices)) < len(devices):
        raise CompiledStepError(
            f"{start} that share GPUs, but XLA reduces by NCCL, which needs a GPU of "
            "its own for each; use fewer replicas, or pass the function itself"
        )

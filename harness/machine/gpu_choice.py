"""Which GPUs a trial gets: the first of those that CUDA_VISIBLE_DEVICES allows.

CUDA itself is silent about mistakes: an id that does not exist hides all after it, and
an id that is given twice hides all. Here both are errors, since a trial on fewer GPUs
than were meant measures something else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.errors import PlanError
from harness.machine import gpus
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.machine.gpus import Gpu

_MOST_SHOWN = 120


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Returns the GPUs this process can use, in the order of CUDA_VISIBLE_DEVICES."""
    known = gpus.read_gpus()
    chosen = _listed(known, environment)
    for gpu in chosen:
        if gpu.fault:
            others = ",".join(of.cuda_id for of in known if not of.fault)
            raise PlanError(
                f"GPU {gpu.cuda_id} cannot be read ({gpu.fault}), so it may be in use"
                " or broken; reset it (sudo nvidia-smi --gpu-reset), or hide it:"
                f" CUDA_VISIBLE_DEVICES={others or gpus.NO_GPU}"
            )
    return chosen


def listed_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Returns the GPUs this process may use, also those that cannot be read."""
    return _listed(gpus.read_gpus(), environment)


def _listed(known: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    limit = environment.get("CUDA_VISIBLE_DEVICES")
    if limit is None or not known:
        return known
    chosen: list[Gpu] = []
    for text in limit.split(",") if limit.strip() else []:
        name = text.strip()
        if name == gpus.NO_GPU:  # hides itself and the rest, as it is meant to
            break
        gpu = _find(name, known, limit)
        if gpu in chosen:
            raise PlanError(
                f"{_shown(limit)} names GPU {gpu.cuda_id} twice, so CUDA would show"
                " none; name each GPU once"
            )
        chosen.append(gpu)
    return tuple(chosen)


def _find(name: str, known: Sequence[Gpu], limit: str) -> Gpu:
    if name.isdecimal():
        found = [gpu for gpu in known if gpu.index == int(name)][:1]
    elif name.startswith(("GPU-", "MIG-")):  # CUDA takes a unique beginning as well
        found = [gpu for gpu in known if gpu.uuid.startswith(name)]
    else:
        found = []
    if len(found) == 1:
        return found[0]
    ids = ", ".join(gpu.cuda_id for gpu in known)
    if found:
        uuids = ", ".join(gpu.uuid for gpu in found)
        raise PlanError(
            f"{_shown(limit)}: '{_cut(name)}' is the beginning of {len(found)} ids"
            f" ({uuids}); give one of them in full"
        )
    raise PlanError(
        f"{_shown(limit)}: '{_cut(name)}' is no GPU of this machine, so CUDA would"
        f" hide it and all after it; allowed are {ids} and the UUIDs that"
        " 'nvidia-smi -L' lists"
    )


def _shown(limit: str) -> str:
    return f"CUDA_VISIBLE_DEVICES={_cut(limit)}"


def _cut(text: str) -> str:
    return printable(text)[:_MOST_SHOWN]


def choose(visible: Sequence[Gpu], num_replicas: int) -> tuple[Gpu, ...]:
    """Returns the GPUs of a trial: one for each replica."""
    if len(visible) < num_replicas:
        raise PlanError(
            f"the trial needs {num_replicas} GPUs, but this machine shows"
            f" {len(visible)}; continue the study on the machine it was planned for"
        )
    chosen = tuple(visible[:num_replicas])
    if num_replicas > 1 and any(gpu.is_mig for gpu in chosen):
        raise PlanError(
            f"{num_replicas} replicas need {num_replicas} GPUs, but this machine's are"
            " in MIG mode, and CUDA gives a process one MIG instance at most; use"
            " --replicas 1, or switch MIG off: sudo nvidia-smi -mig 0"
        )
    if len({gpu.name for gpu in chosen}) > 1:
        raise PlanError(
            f"{num_replicas} replicas need {num_replicas} GPUs of one model, but"
            f" {models(chosen)}; choose equal ones with CUDA_VISIBLE_DEVICES, such as"
            f" CUDA_VISIBLE_DEVICES={','.join(_most_common(visible))}"
        )
    return chosen


def models(chosen: Sequence[Gpu]) -> str:
    """Returns which GPUs are of which model, in words."""
    by_name: dict[str, list[str]] = {}
    for gpu in chosen:
        by_name.setdefault(gpu.name, []).append(gpu.cuda_id)
    return ", ".join(
        f"GPU {'+'.join(ids)} {'is' if len(ids) == 1 else 'are'} {name}"
        for name, ids in by_name.items()
    )


def _most_common(visible: Sequence[Gpu]) -> list[str]:
    names = [gpu.name for gpu in visible]
    most = max(names, key=names.count)
    return [gpu.cuda_id for gpu in visible if gpu.name == most]

"""Overlap: how long a step of GPUs waits for its reductions, by an event model.

No machine of the tests has several GPUs. So the model takes what is real, the work and
the order of a traced step and the plan of its reductions, and what others published of
GPUs and links. A *device* has two streams, as TensorFlow gives them: kernels of the
step, in the order in which the host starts them, and kernels of NCCL. A reduction
begins after

- the one before it in its stream, and
- all kernels of the step that were started before it was (an event on their stream).

Times are in seconds from the first kernel; each device does the same.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools

# Rules of ``engine/link/chain.py``.
FREE, STARTED, ENDED = "free", "started", "ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What a step runs on."""

    num_gpus: int  # Of all nodes.
    step_sec: float  # What the kernels of a step take on one GPU.
    host_sec: float  # What the host takes to start all of them.
    reduction_sec: float  # What a reduction takes besides sending.
    bytes_per_sec: float  # Bus bandwidth, as NCCL's tests define it.

    def reduction(self, num_bytes):
        """Time of one reduction by a ring (Patarasuk and Yuan 2009)."""
        sent = num_bytes * 2 * (self.num_gpus - 1) / self.num_gpus
        return self.reduction_sec + sent / self.bytes_per_sec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reduction:
    """A bucket of a plan."""

    num_bytes: int  # What each replica sends.
    released_by: int  # The last kernel that computes one of its operands.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeline:
    """When things happen on each device."""

    kernels: tuple[float, ...]  # By kernel, when it ends.
    reductions: tuple[tuple[float, float], ...]  # By bucket, when it begins and ends.

    @property
    def efficiency(self):
        """Time of the step without communication, as a share of its time with it."""
        ends = [end for _, end in self.reductions]
        return self.kernels[-1] / max([self.kernels[-1], *ends])


def simulate(work, reductions, machine, rule):
    scale = machine.step_sec / sum(work)
    kernels = [end * scale for end in itertools.accumulate(work)]
    starts = [machine.host_sec * (index + 1) / len(work) for index in range(len(work))]
    order = list(range(len(reductions)))
    if rule == FREE:
        order.sort(key=lambda index: reductions[index].released_by)
    spans = {}
    started = ended = 0.0
    for index in order:
        reduction = reductions[index]
        asked = starts[reduction.released_by]
        if rule == STARTED:
            asked = max(asked, started)
        elif rule == ENDED:
            asked = max(asked, ended)
        # All that the host has started by then is before it on the stream.
        last = max(bisect.bisect_right(starts, asked) - 1, reduction.released_by)
        begin = max(kernels[last], ended)
        started, ended = asked, begin + machine.reduction(reduction.num_bytes)
        spans[index] = begin, ended
    in_order = [spans[index] for index in range(len(reductions))]
    return Timeline(kernels=tuple(kernels), reductions=tuple(in_order))

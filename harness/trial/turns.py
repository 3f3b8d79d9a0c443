"""The process of a trial in a relay takes turns on command.

In a relay (``docs/measuring.md``) the processes of several cases are alive at once.
Each connects to the harness, says what it has reached, and waits for the next command
on a socket, without using a core. The messages are those of every program that takes
part in a study: ``docs/client_protocol.md`` describes them, and
``harness/client/scaling_client.py`` sends them.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

from harness.client.scaling_client import PROTOCOL, Turn, set_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.client.scaling_client import Channel, RankFile
    from harness.trial.measure import MemoryProbe, StepProgram

__all__ = ["COMPATIBLE", "PROTOCOL", "take_turns"]

COMPATIBLE: Final = (2, PROTOCOL)
"""Versions that both sides of a gate may have: 2 does not say which version it is."""


def take_turns(
    program: StepProgram,
    run_steps: Callable[[int], int],
    warm_step_sec: float,
    channel: Channel,
    writer: RankFile,
    memory: MemoryProbe,
    *,
    clock: Callable[[], int],
    count_traces: Callable[[], int],
) -> None:
    """Takes turns until the harness says that there are no more.

    The garbage collector, which is off, runs between turns, and within those that are
    sustained; the program's own background work, such as actors, is paused between.
    """
    program.pause()
    command = channel.ask("ready", step_time_sec=warm_step_sec)
    while command["command"] == "turn":
        set_collector(command)
        program.resume()
        num_traces = count_traces()
        turn = Turn(command, clock)
        facts = turn.end(run_steps(command["num_steps"]))
        program.pause()
        gc.disable()
        memory.sample()
        facts["num_retraces"] = count_traces() - num_traces
        writer.write("turn", **facts)
        command = channel.ask("turn", **facts)

"""The process of a trial in a relay: it starts, and takes turns, on command.

In a relay (``docs/measuring.md``) the processes of several cases are alive at once.
Each process connects to the harness, says what it has reached, and waits for the next
command on a socket, without using a core. Messages are lines of JSON:

- ``{"state": "imported", "rank": 0}``, answered by ``{"command": "build", "is_alone":
  false}``: other processes start beside this one
- ``{"state": "built"}``: all but the last warm-up step are done
- ``{"command": "warm_up", "heap_fraction": 0.25}``, answered by ``{"state": "ready",
  "step_time_sec": 0.4}``: the process has added so much of its memory to its heap
  (``harness/trial/heap.py``), and its last warm-up step ran, with the machine to itself
- ``{"command": "turn", "num_steps": 2, "is_sustained": false, ...}``, answered by
  ``{"state": "turn", ...}`` with the times of the turn and what the process used in it;
  in a sustained one the garbage collector works as it does in users' programs
- ``{"command": "finish"}``: check, record and exit

The address begins with ``@``: a socket in Linux' abstract namespace, which no file
stands for and which is gone with the harness.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.trial.measure import MemoryProbe, StepProgram
    from harness.trial.rank_file import RankWriter

ADDRESS_VARIABLE = "REPLICATOR_HARNESS_TURNS"
"""Environment variable with the address; absent where a trial runs alone."""


PROTOCOL = 3
"""Version of these messages: both sides of a gate must have the same."""


class LostHarnessError(ConnectionError):
    """The harness has closed the connection: it has exited."""


def native_address(address: str) -> str:
    """Returns an address as the kernel expects it."""
    return "\0" + address[1:]


class TurnChannel:
    """The trial's end of the connection to the harness."""

    def __init__(self, address: str, rank: int) -> None:
        """Connects.

        Raises:
          OSError: The harness does not listen there.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(native_address(address))
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._rank = rank

    @classmethod
    def from_environment(cls, rank: int) -> TurnChannel | None:
        """Connects if this trial is part of a relay."""
        address = os.environ.get(ADDRESS_VARIABLE)
        return None if address is None else cls(address, rank)

    def ask(self, state: str, **facts: Any) -> dict[str, Any]:
        """Says what was reached, and waits for the next command.

        Raises:
          LostHarnessError: There will be none.
        """
        message = {"state": state, "rank": self._rank, **facts}
        try:
            self._socket.sendall(json.dumps(message).encode("ascii") + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise LostHarnessError(str(error)) from error
        if not line.endswith("\n"):
            raise LostHarnessError("the harness has closed the connection")
        command: dict[str, Any] = json.loads(line)
        return command


def take_turns(
    program: StepProgram,
    run_steps: Callable[[int], int],
    warm_step_sec: float,
    channel: TurnChannel,
    writer: RankWriter,
    memory: MemoryProbe,
    *,
    clock: Callable[[], int],
    count_traces: Callable[[], int],
) -> None:
    """Takes turns until the harness says that there are no more.

    The garbage collector, which is off, runs between turns, and within those that are
    sustained; the program's own background work, such as actors, is paused between.

    Args:
      program: What is stepped.
      run_steps: Runs so many steps, and returns their end in nanoseconds.
      warm_step_sec: The duration of the last warm-up step.
      channel: The connection to the harness.
      writer: Where observations go.
      memory: Sampled between turns.
      clock: Nanoseconds, monotonic.
      count_traces: How many functions TensorFlow has traced so far.

    Raises:
      LostHarnessError: The harness has exited.
      Exception: Whatever the program raises.
    """
    program.pause()
    command = channel.ask("ready", step_time_sec=warm_step_sec)
    while command["command"] == "turn":
        is_sustained = command["is_sustained"]
        if is_sustained:
            gc.unfreeze()
            gc.enable()
        else:
            gc.collect()
        program.resume()
        num_traces, before = count_traces(), resource.getrusage(resource.RUSAGE_SELF)
        start_ns = clock()
        end_ns = run_steps(command["num_steps"])
        after = resource.getrusage(resource.RUSAGE_SELF)
        program.pause()
        if is_sustained:
            gc.disable()
        memory.sample()
        facts = {
            "round_index": command["round_index"],
            "attempt": command["attempt"],
            "start_ns": start_ns,
            "end_ns": end_ns,
            "num_steps": command["num_steps"],
            "is_sustained": is_sustained,
            **_used(before, after),
            "num_retraces": count_traces() - num_traces,
        }
        writer.write("turn", **facts)
        command = channel.ask("turn", **facts)


def _used(
    before: resource.struct_rusage, after: resource.struct_rusage
) -> dict[str, float]:
    """Returns what this process used between two readings."""
    return {
        "user_sec": after.ru_utime - before.ru_utime,
        "system_sec": after.ru_stime - before.ru_stime,
        "minor_faults": after.ru_minflt - before.ru_minflt,
        "major_faults": after.ru_majflt - before.ru_majflt,
        "involuntary_switches": after.ru_nivcsw - before.ru_nivcsw,
    }

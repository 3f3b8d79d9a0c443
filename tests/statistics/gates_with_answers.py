"""Small programs whose gates have a known answer: equal code, and what is planted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORK: Final = 300_000
_NUM_STEPS: Final = 23
_ROUNDS: Final = 10
_PROCESSES: Final = 40
_WORK_OF_A_STEP: Final = """
def work():
    total = 0
    for value in range(WORK):
        total += value * value
"""
_PRINTS: Final = f"""
import random
import time
{_WORK_OF_A_STEP}
slow = IN_FIVE * (random.SystemRandom().random() < 0.2)
for _ in range({_NUM_STEPS}):
    start = time.CLOCK()
    work()
    time.sleep(slow * (time.CLOCK() - start))
    print("steps/s:", 1 / (time.CLOCK() - start), flush=True)
"""
_CONNECTS: Final = f"""
import time

import scaling_client
{_WORK_OF_A_STEP}
for number, step in enumerate(scaling_client.connect().steps()):
    start = time.perf_counter()
    work()
    longer = SLEEP + EVERY_50TH * (number % 50 == 49)
    if longer:
        time.sleep(longer * (time.perf_counter() - start))
    step.done(examples=1)
"""
_IN_A_RELAY: Final = ("--metric", "client", "--rounds", str(_ROUNDS))
_ALONE: Final = ("--metric", "throughput=steps/s: ([0-9.]+)", "--unit", "steps")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What a gate judges.

    Attributes:
      name: Its commit, and the first part of the names of its studies.
      says: In a table.
      program: What is measured.
      options: Of the gate.
      constants: Of the program, beside those of the base.
      is_planted: Whether the change is slower.
    """

    name: str
    says: str
    program: str
    options: tuple[str, ...]
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_planted: bool = True

    @property
    def right(self) -> set[str]:
        """The verdicts that are true."""
        return {"regress"} if self.is_planted else {"pass", "improve"}

    @property
    def wrong(self) -> set[str]:
        """The verdicts that are false; others say nothing."""
        return {"pass", "improve"} if self.is_planted else {"regress"}

    def source(self, comment: str, constants: Mapping[str, float]) -> str:
        """Returns the program with its constants."""
        values = {"WORK": _WORK, "SLEEP": 0.0, "EVERY_50TH": 0.0, "IN_FIVE": 0.0}
        values |= constants
        listed = "\n".join(f"{name} = {value}" for name, value in values.items())
        return f"# {comment}\n{listed}\n{self.program}"


def on_any_machine(loss: float, repeats: int) -> dict[Kind, int]:
    """Returns equal code and more work, by the clock of the process; five of each."""
    alone = {
        "program": _PRINTS.replace("CLOCK", "process_time"),
        "options": (*_ALONE, "--repeats", str(repeats)),
    }
    more = {"WORK": round(_WORK * (1 + loss))}
    return {
        Kind(name="equal", says="equal code", is_planted=False, **alone): 5,
        Kind(name="planted", says=f"{loss:.0%} more work", constants=more, **alone): 5,
    }


def on_a_quiet_machine() -> dict[Kind, int]:
    """Returns equal code, and what is not in every step or process, with numbers."""
    relay = {"program": _CONNECTS, "options": _IN_A_RELAY}
    return {
        Kind(name="same", says="equal code", is_planted=False, **relay): 8,
        Kind(
            name="sleep",
            says="each step sleeps for 6 % of its time",
            constants={"SLEEP": 0.06},
            **relay,
        ): 4,
        Kind(
            name="fiftieth",
            says="every 50th step takes 11 times as long (+20 %)",
            constants={"EVERY_50TH": 10.0},
            **relay,
        ): 4,
        Kind(
            name="in-five",
            says="one process in five takes 50 % longer (+10 %)",
            program=_PRINTS.replace("CLOCK", "perf_counter"),
            options=(*_ALONE, "--repeats", str(_PROCESSES)),
            constants={"IN_FIVE": 0.5},
        ): 4,
    }

"""Small programs whose gates have a known answer: equal code, and what is planted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORK = 300_000
_NUM_STEPS = 23
_WORK_OF_A_STEP = """
def work():
    total = 0
    for value in range(WORK):
        total += value * value
"""
_PRINTS = f"""
import time
{_WORK_OF_A_STEP}
for _ in range({_NUM_STEPS}):
    start = time.process_time()
    work()
    print("steps/s:", 1 / (time.process_time() - start), flush=True)
"""
_ALONE = ("--metric", "throughput=steps/s: ([0-9.]+)", "--unit", "steps")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What a gate judges."""

    name: str  # Its commit, and the first part of the names of its studies.
    says: str  # In a table.
    program: str  # What is measured.
    options: tuple[str, ...]  # Of the gate.
    # Of the program, beside those of the base.
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_planted: bool = True  # Whether the change is slower.

    @property
    def right(self):
        return {"regress"} if self.is_planted else {"pass", "improve"}

    @property
    def wrong(self):
        return {"pass", "improve"} if self.is_planted else {"regress"}

    def source(self, comment, constants):
        values = {"WORK": _WORK}
        values |= constants
        listed = "\n".join(f"{name} = {value}" for name, value in values.items())
        return f"# {comment}\n{listed}\n{self.program}"


def on_any_machine(loss, repeats):
    """Returns equal code and more work, by the clock of the process; five of each."""
    alone = {
        "program": _PRINTS,
        "options": (*_ALONE, "--repeats", str(repeats)),
    }
    more = {"WORK": round(_WORK * (1 + loss))}
    return {
        Kind(name="equal", says="equal code", is_planted=False, **alone): 5,
        Kind(name="planted", says=f"{loss:.0%} more work", constants=more, **alone): 5,
    }

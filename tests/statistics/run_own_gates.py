"""Real gates of a small program: what is planted is found, and equal code passes.

    python tests/statistics/run_own_gates.py FOLDER
    python tests/statistics/run_own_gates.py FOLDER --quiet-machine

The program is one of nobody's repository, which is made in FOLDER: a commit, the same
with another comment, and one for each thing that is planted.

- By default, five gates of equal code and five where steps do 10 % more work, whose
  clock is the CPU time of the process: who else runs on the machine is no part of what
  is looked at. A quarter of a minute per gate.
- With ``--quiet-machine``, eight gates of equal code, and four each where every step
  sleeps for 6 % of its time, where every 50th takes 11 times as long (+20 %), and where
  one process in five takes 50 % longer (+10 %). Their clock is that of the wall, so
  nothing else may run. Those that see single processes have 40 fresh ones of either
  side; the others are relays that look, with sustained stretches. About 40 minutes.

Kinds of gates alternate, with fresh processes and another seed each. One that is
finished is not measured again, so the same command continues. Each is a study in
FOLDER/runs, and FOLDER/gates.md has them in a table. Prints every verdict with its
interval, and how many of each kind are right, with the exact interval of their share.
Exits with 1 if equal code regresses or what was planted passes, and with 3 if a gate
says neither.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENT: Final = ROOT / "harness" / "client"
BASE: Final = "base"
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


def kinds_on_any_machine(loss: float, repeats: int) -> dict[Kind, int]:
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


def kinds_on_a_quiet_machine() -> dict[Kind, int]:
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


def git(root: Path, *arguments: str) -> None:
    """Runs git as nobody in particular."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True)


def make_repository(root: Path, kinds: Sequence[Kind]) -> None:
    """Makes the repository, with a tag for each commit that is not there yet."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / ".git").exists():
        git(root, "init", "--quiet")
        (root / ".gitignore").write_text("runs\ngates.md\n")
    for kind in kinds:
        for tag, constants in (
            (f"{BASE}-{kind.name}", {}),
            (kind.name, kind.constants),
        ):
            if (root / ".git/refs/tags" / tag).exists():
                continue
            (root / "program.py").write_text(kind.source(tag, constants))
            git(root, "add", "--all")
            git(root, "commit", "--quiet", "-m", tag)
            git(root, "tag", tag)


def judge(root: Path, kind: Kind, number: int) -> dict[str, Any]:
    """Runs a gate, or shows one that is finished; returns what it says as data."""
    git(root, "checkout", "--quiet", kind.name)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "gate"),
            *("--baseline", f"{BASE}-{kind.name}"),
            *("--command", "python3 program.py {replicas}"),
            *("--per-replica-batch-size", "1", "--replicas", "1", "--mode", "weak"),
            *("--seed", str(number), *kind.options),
            *("--study", f"{kind.name}-{number}", "--format", "json"),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{CLIENT}"},
        stdout=subprocess.PIPE,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"error: a gate ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def change_of(of: Mapping[str, Any] | None) -> str:
    """Returns a slowdown with its interval and the number of its generations."""
    if of is None or of["low"] is None:
        return "no interval"
    return (
        f"{of['value'] - 1:+.1%} [{of['low'] - 1:+.1%}, {of['high'] - 1:+.1%}],"
        f" n = {of['n']}"
    )


def row(kind: Kind, number: int, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a gate in words: which, its verdict, and the change with its interval.

    Also what it saw of sustained stretches, where that decided.
    """
    (case,) = found["cases"]
    others = (
        f"; {name}: {change_of(of['slowdown'])}"
        for name, of in case.get("others", {}).items()
        if of["verdict"] == "regress"
    )
    change = f"{change_of(case['slowdown'])}{''.join(others)}"
    if found.get("unfit"):
        change = found["unfit"]
    return f"{kind.name} {number}", found["verdict"] or "no verdict", change


def summary(verdicts: Mapping[Kind, Sequence[str | None]]) -> tuple[list[str], int]:
    """Returns how many gates of each kind are right, and the exit code."""
    lines, code = [], 0
    for kind, said in verdicts.items():
        right = sum(verdict in kind.right for verdict in said)
        share = stats.binomtest(right, len(said)).proportion_ci(method="exact")
        counted = collections.Counter(verdict or "no verdict" for verdict in said)
        listed = ", ".join(f"{number} {name}" for name, number in counted.items())
        lines.append(
            f"{kind.says}: {right} of {len(said)} right"
            f" [{share.low:.2f}, {share.high:.2f}]: {listed}"
        )
        if any(verdict in kind.wrong for verdict in said):
            code = 1
        elif right < len(said):
            code = code or 3
    return lines, code


def table(rows: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    """Returns all gates as Markdown, and what they amount to."""
    heads = (("gate", "verdict", "slower by"), ("---",) * 3)
    listed = [f"| {' | '.join(cells)} |" for cells in (*heads, *rows)]
    return "\n".join([*listed, "", *(f"- {line}" for line in lines), ""])


def main(arguments: Sequence[str]) -> int:
    """Runs all gates; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/statistics/run_own_gates.py")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--quiet-machine",
        action="store_true",
        help="gates whose clock is that of the wall; nothing else may run",
    )
    parser.add_argument("--gates", type=int, help="at most so many of each kind")
    parser.add_argument("--repeats", type=int, default=8, help="generations of each")
    parser.add_argument("--loss", default="10%", help="what is planted")
    given = parser.parse_args(arguments)
    root = given.folder.absolute()
    kinds = kinds_on_any_machine(float(given.loss.rstrip("%")) / 100, given.repeats)
    if given.quiet_machine:
        kinds = kinds_on_a_quiet_machine()
    make_repository(root, list(kinds))
    verdicts: dict[Kind, list[str | None]] = {kind: [] for kind in kinds}
    rows: list[tuple[str, ...]] = []
    for number in range(max(kinds.values())):
        for kind, said in verdicts.items():
            if number >= min(kinds[kind], given.gates or kinds[kind]):
                continue
            found = judge(root, kind, number)
            said.append(found["verdict"])
            rows.append(row(kind, number, found))
            sys.stdout.write(f"{': '.join(rows[-1])}\n")
            sys.stdout.flush()
    lines, code = summary(verdicts)
    (root / "gates.md").write_text(table(rows, lines), encoding="utf-8")
    sys.stdout.write("\n".join([*lines, ""]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

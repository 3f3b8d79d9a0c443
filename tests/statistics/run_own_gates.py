"""Real gates of a small program: what is planted is found, and equal code passes.

    python tests/statistics/run_own_gates.py FOLDER [--gates 5] [--loss 10%]

The program is one of nobody's repository, which is made in FOLDER: a commit, the same
with another comment, and one whose steps do ``--loss`` more work. Gates of either kind
alternate, with fresh processes and another seed each. One that is finished is not
measured again, so the same command continues. Prints every verdict with its interval,
and how many of each kind are right, with the exact interval of their share. Exits with
1 if equal code regresses or what was planted passes, and with 3 if a gate says neither.
A quarter of a minute per gate.
"""

from __future__ import annotations

import argparse
import collections
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
EQUAL, PLANTED = "equal", "planted"
RIGHT: Final = {EQUAL: {"pass", "improve"}, PLANTED: {"regress"}}
WRONG: Final = {EQUAL: {"regress"}, PLANTED: {"pass", "improve"}}
_WORK: Final = 300_000
# Its clock is the CPU time of its process: who else runs on the machine is no part of
# what is looked at here, which is how the gate decides.
_PROGRAM: Final = """
import time

for _ in range(23):
    start = time.process_time()
    total = 0
    for value in range(WORK):
        total += value * value
    print("steps/s:", 1 / (time.process_time() - start), flush=True)
"""


def git(root: Path, *arguments: str) -> None:
    """Runs git as nobody in particular."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True)


def make_repository(root: Path, loss: float) -> None:
    """Makes the repository, with a tag for each commit."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("runs\n")
    for name, work in (
        ("base", _WORK),
        (EQUAL, _WORK),
        (PLANTED, round(_WORK * (1 + loss))),
    ):
        (root / "program.py").write_text(f"# {name}\nWORK = {work}\n{_PROGRAM}")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", name)
        git(root, "tag", name)


def judge(root: Path, kind: str, number: int, repeats: int) -> dict[str, Any]:
    """Runs a gate, or shows one that is finished; returns what it says as data."""
    git(root, "checkout", "--quiet", kind)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "gate", "--baseline", "base"),
            *("--command", "python3 program.py {replicas}"),
            *("--metric", "throughput=steps/s: ([0-9.]+)", "--unit", "steps"),
            *("--per-replica-batch-size", "1", "--replicas", "1", "--mode", "weak"),
            *("--repeats", str(repeats), "--seed", str(number)),
            *("--study", f"{kind}-{number}", "--format", "json"),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"error: a gate ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(kind: str, number: int, found: Mapping[str, Any]) -> str:
    """Returns a gate in a line: its verdict, and the change with its interval."""
    (case,) = found["cases"]
    of = case["slowdown"]
    change = "no interval"
    if of is not None and of["low"] is not None:
        change = (
            f"{of['value'] - 1:+.1%} [{of['low'] - 1:+.1%}, {of['high'] - 1:+.1%}],"
            f" n = {of['n']}"
        )
    return f"{kind} {number}: {found['verdict'] or 'no verdict'}: {change}"


def summary(verdicts: Mapping[str, Sequence[str | None]]) -> tuple[list[str], int]:
    """Returns how many gates of each kind are right, and the exit code."""
    lines, code = [], 0
    for kind, said in verdicts.items():
        right = sum(verdict in RIGHT[kind] for verdict in said)
        share = stats.binomtest(right, len(said)).proportion_ci(method="exact")
        counted = collections.Counter(verdict or "no verdict" for verdict in said)
        listed = ", ".join(f"{number} {name}" for name, number in counted.items())
        lines.append(
            f"{kind}: {right} of {len(said)} right"
            f" [{share.low:.2f}, {share.high:.2f}]: {listed}"
        )
        if any(verdict in WRONG[kind] for verdict in said):
            code = 1
        elif right < len(said):
            code = code or 3
    return lines, code


def main(arguments: Sequence[str]) -> int:
    """Runs all gates; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/statistics/run_own_gates.py")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gates", type=int, default=5, help="of each kind")
    parser.add_argument("--repeats", type=int, default=8, help="generations of each")
    parser.add_argument("--loss", default="10%", help="what is planted")
    given = parser.parse_args(arguments)
    root = given.folder.absolute()
    if not (root / ".git").exists():
        make_repository(root, float(given.loss.rstrip("%")) / 100)
    verdicts: dict[str, list[str | None]] = {EQUAL: [], PLANTED: []}
    for number in range(given.gates):
        for kind, said in verdicts.items():
            found = judge(root, kind, number, given.repeats)
            said.append(found["verdict"])
            sys.stdout.write(f"{row(kind, number, found)}\n")
            sys.stdout.flush()
    lines, code = summary(verdicts)
    sys.stdout.write("\n".join([*lines, ""]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

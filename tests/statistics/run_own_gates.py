"""Real gates of a small program: what is planted is found, and equal code passes.

    python tests/statistics/run_own_gates.py FOLDER

The program is one of nobody's repository, which is made in FOLDER: a commit, the same
with another comment, and one where more work is planted.

Five gates are of equal code, and in five steps do 10 % more work. The clock is the CPU
time of the process: who else runs on the machine is no part of what is looked at.

Kinds of gates alternate, with fresh processes and another seed each. One that is
finished is not measured again, so the same command continues; ``--seconds`` measures
in pieces, between which others have the machine. Each is a study in FOLDER/runs, what
it says is in FOLDER/verdicts, and FOLDER/gates.md has them in a table. ``--keep PATH``
writes the records of each into a zip file, which ``verify`` accepts. Prints every
verdict with its interval, and how many of each kind are right, with the exact interval
of their share.
Exits with 1 if equal code regresses or what was planted passes, and with 3 if a gate
says neither.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gates_with_answers
from scipy import stats

from reports.exports import archive
from reports.words import judgement
from results.judging import gate
from results.store import zipped
from results.store.study_store import Store
from results.study.cases import load_study

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "harness" / "client"
BASE = "base"


def git(root, *arguments):
    """Runs git as nobody in particular."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True)


def make_repository(root, kinds):
    """Makes the repository, with a tag for each commit that is not there yet."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / ".git").exists():
        git(root, "init", "--quiet")
        (root / ".gitignore").write_text("runs\nverdicts\ngates.md\n")
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


def judge(root, kind, number):
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
    return json.loads(done.stdout)


def kept(root, kind, number):
    return root / "verdicts" / f"{kind.name}-{number}.json"


def asked_once(root, kind, number):
    """Returns what a gate says; where it had a verdict before, without asking again."""
    path = kept(root, kind, number)
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    found = judge(root, kind, number)
    if found["verdict"]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
    return found


def recorded(path):
    """Returns what a gate says by its records alone, in a folder or a zip file."""
    with zipped.opened(path) as root:
        found = gate.of_plan(load_study(Store.open(root)))
    if found is None:
        raise ValueError(f"{path} has no gate against a revision")
    return json.loads(judgement.gate_json(found))


def keep(root, folder):
    """Writes the records of every gate that had a verdict into zip files."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((root / "verdicts").glob("*.json")):
        content = archive.of_study(Store.open(root / "runs" / path.stem))
        (folder / f"{path.stem}.zip").write_bytes(content)


def change_of(of):
    """Returns a slowdown with its interval and the number of its generations."""
    if of is None or of["low"] is None:
        return "no interval"
    return (
        f"{of['value'] - 1:+.1%} [{of['low'] - 1:+.1%}, {of['high'] - 1:+.1%}],"
        f" n = {of['n']}"
    )


def row(kind, number, found):
    """Returns a gate in words: which, its verdict, and the change with its interval."""
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


def summary(verdicts):
    """Returns how many gates of each kind are right, and the exit code."""
    lines, code = [], 0
    for kind, said in verdicts.items():
        if not said:
            lines.append(f"{kind.says}: none was measured")
            code = code or 3
            continue
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


def table(rows, lines):
    heads = (("gate", "verdict", "slower by"), ("---",) * 3)
    listed = [f"| {' | '.join(cells)} |" for cells in (*heads, *rows)]
    return "\n".join([*listed, "", *(f"- {line}" for line in lines), ""])


def main(arguments):
    parser = argparse.ArgumentParser(prog="python tests/statistics/run_own_gates.py")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gates", type=int, help="at most so many of each kind")
    parser.add_argument(
        "--seconds", type=float, help="start no gate later than this; the others wait"
    )
    parser.add_argument("--keep", type=Path, help="folder for zip files of records")
    parser.add_argument("--repeats", type=int, default=15, help="generations of each")
    parser.add_argument("--loss", default="10%", help="what is planted")
    given = parser.parse_args(arguments)
    root = given.folder.absolute()
    kinds = gates_with_answers.on_any_machine(
        float(given.loss.rstrip("%")) / 100, given.repeats
    )
    make_repository(root, list(kinds))
    verdicts = {kind: [] for kind in kinds}
    rows = []
    start = time.monotonic()
    for number in range(max(kinds.values())):
        for kind, said in verdicts.items():
            if number >= min(kinds[kind], given.gates or kinds[kind]):
                continue
            is_late = given.seconds and time.monotonic() - start > given.seconds
            if is_late and not kept(root, kind, number).exists():
                continue
            found = asked_once(root, kind, number)
            said.append(found["verdict"])
            rows.append(row(kind, number, found))
            sys.stdout.write(f"{': '.join(rows[-1])}\n")
            sys.stdout.flush()
    lines, code = summary(verdicts)
    (root / "gates.md").write_text(table(rows, lines), encoding="utf-8")
    sys.stdout.write("\n".join([*lines, ""]))
    if given.keep is not None:
        keep(root, given.keep)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

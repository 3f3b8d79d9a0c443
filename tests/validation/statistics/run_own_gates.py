"""Real gates of a small program: what is planted is found, and equal code passes.

    python tests/validation/statistics/run_own_gates.py FOLDER

Makes a repository in FOLDER: a commit, the same with another comment, and one where
10 % more work is planted. Five gates are of equal code and five of more work, in turn,
each with fresh processes and another seed. The clock is the CPU time of the process:
who else runs on the machine is no part of what is looked at.

A gate that has a verdict (FOLDER/verdicts) is not measured again, so the same command
continues; each is a study in FOLDER/runs. Prints every verdict with its interval, and
how many of each kind are right, with the exact interval of their share. Exits with 1 if
equal code regresses or what was planted passes, and with 3 if a gate says neither.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
from pathlib import Path

from scipy import stats

ROOT = Path(__file__).resolve().parents[3]
CLIENT = ROOT / "harness" / "client"
NUM_GATES = 5
WORK = 300_000
PROGRAM = """# {name}
import time

for _ in range(23):
    start = time.process_time()
    total = 0
    for value in range({work}):
        total += value * value
    print("steps/s:", 1 / (time.process_time() - start), flush=True)
"""
# By kind: how much more work, and which verdicts are right, and wrong.
PASSES, FAILS = {"pass", "improve"}, {"regress"}
KINDS = {"equal": (1.0, PASSES, FAILS), "planted": (1.1, FAILS, PASSES)}


def git(root, *arguments):
    """Runs git as nobody in particular."""
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True)


def make_repository(root):
    if (root / ".git").exists():
        return
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("runs\nverdicts\n")
    for name, work in (("base", 1.0), *((name, of[0]) for name, of in KINDS.items())):
        source = PROGRAM.format(name=name, work=round(WORK * work))
        (root / "program.py").write_text(source)
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", name)
        git(root, "tag", name)


def judge(root, kind, number, repeats):
    """Runs a gate and returns what it says as data, or what it said before."""
    path = root / "verdicts" / f"{kind}-{number}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    git(root, "checkout", "--quiet", kind)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "gate", "--baseline", "base"),
            *("--command", "python3 program.py {replicas}"),
            *("--metric", "throughput=steps/s: ([0-9.]+)", "--unit", "steps"),
            *("--per-replica-batch-size", "1", "--replicas", "1", "--mode", "weak"),
            *("--repeats", str(repeats), "--set", f"seed={number}"),
            *("--study", f"{kind}-{number}", "--format", "json"),
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{CLIENT}"},
        stdout=subprocess.PIPE,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"error: a gate ended with code {done.returncode}")
    found = json.loads(done.stdout)
    if found["verdict"] != "no verdict":
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
    return found


def line(kind, number, found):
    """Returns a gate in words: which, its verdict, and the change with its interval."""
    (case,) = found["cases"]
    change, of = found.get("unfit") or "no interval", case["slowdown"]
    if of is not None and case["low"] is not None:
        low, high = case["low"], case["high"]
        change = f"{of:+.1%} [{low:+.1%}, {high:+.1%}], n = {case['n']}"
    return f"{kind} {number}: {found['verdict']}: {change}\n"


def summary(verdicts):
    """Returns how many gates of each kind are right, and the exit code."""
    lines, code = [], 0
    for kind, said in verdicts.items():
        _, is_right, is_wrong = KINDS[kind]
        right = sum(verdict in is_right for verdict in said)
        share = stats.binomtest(right, len(said)).proportion_ci(method="exact")
        counted = collections.Counter(verdict or "no verdict" for verdict in said)
        listed = ", ".join(f"{number} {name}" for name, number in counted.items())
        lines.append(
            f"{kind}: {right} of {len(said)} right"
            f" [{share.low:.2f}, {share.high:.2f}]: {listed}\n"
        )
        if is_wrong.intersection(said):
            code = 1
        elif right < len(said):
            code = code or 3
    return lines, code


def main():
    """Runs the gates that have no verdict yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=15, help="runs of each")
    given = parser.parse_args()
    root = given.folder.absolute()
    make_repository(root)
    verdicts = collections.defaultdict(list)
    for number in range(NUM_GATES):
        for kind in KINDS:
            found = judge(root, kind, number, given.repeats)
            verdicts[kind].append(found["verdict"])
            sys.stdout.write(line(kind, number, found))
            sys.stdout.flush()
    lines, code = summary(verdicts)
    sys.stdout.writelines(lines)
    return code


if __name__ == "__main__":
    sys.exit(main())

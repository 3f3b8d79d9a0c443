"""Runs the quick start of the README from an environment with the wheel only.

    python .ci/release/quick_start.py WHEEL

The environment is new: pip resolves what the wheel requires. TensorFlow must not be
among it, and a program of a repository of its own is measured, judged, shown and
verified without it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

README: Final = Path(__file__).resolve().parents[2] / "README.md"
NEVER: Final = ("tensorflow", "keras", "tensorflow_datasets", "dm_control")
_QUICK_START: Final = re.compile(
    r"^ {4}python -m harness (sweep --command .*)$", re.MULTILINE
)
_BATCH: Final = "{per_replica_batch_size}"
_STARTER: Final = f"torchrun --nproc-per-node {{replicas}} train.py --batch {_BATCH}"
_PROGRAM: Final = """
import sys, time
replicas, batch = map(int, sys.argv[1:])
for step in range(8):
    start = time.perf_counter()
    while time.perf_counter() < start + COST * batch / 32_000:
        pass
    print("samples/s:", batch * replicas / (time.perf_counter() - start), flush=True)
"""
_COSTS: Final = (40, 60)
"""Milliseconds of a step, of the first commit and of the second: 50 % more."""
_REGRESSION: Final = 1
_FIND: Final = """
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])
"""


def quick_start(readme: str) -> list[str]:
    """Returns the first sweep of the README, of a program that every machine has."""
    found = _QUICK_START.search(re.sub(r"\\\n *", "", readme))
    if found is None or _STARTER not in found[1]:
        raise SystemExit("error: the README has no sweep of a command to begin with")
    words = shlex.split(found[1])
    return [
        word.replace(_STARTER, f"python3 train.py {{replicas}} {_BATCH}")
        for word in words
    ]


def make_repository(folder: Path) -> None:
    """Makes a repository with two commits, the second of which is slower."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        subprocess.run(["git", *who, *arguments], cwd=folder, check=True)

    folder.mkdir()
    git("init", "--quiet")
    (folder / ".gitignore").write_text("runs\n", encoding="utf-8")
    for cost in _COSTS:
        text = f"COST = {cost}\n{_PROGRAM}"
        (folder / "train.py").write_text(text, encoding="utf-8")
        git("add", "--all")
        git("commit", "--quiet", "-m", f"Take {cost} ms")


def run(program: Path, folder: Path, words: Sequence[str], expected: int = 0) -> None:
    """Runs a command of the harness; raises SystemExit if it ends otherwise."""
    sys.stdout.write(f"$ {shlex.join(['replicator-harness', *words])}\n")
    sys.stdout.flush()
    code = subprocess.run([str(program), *words], cwd=folder, check=False).returncode
    if code != expected:
        raise SystemExit(f"error: exit code {code} in place of {expected}")


def follow(python: Path, folder: Path) -> None:
    """Follows the quick start with the interpreter of an environment."""
    found = subprocess.run(
        [str(python), "-c", _FIND, *NEVER],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    if found.stdout.strip():
        raise SystemExit(f"error: the environment has {found.stdout.strip()}")
    own = folder / "own"
    make_repository(own)
    program = python.parent / "replicator-harness"
    sweep = quick_start(README.read_text(encoding="utf-8"))
    run(program, own, [*sweep, "--repeats", "2", "--study", "own"])
    run(program, own, ["report", "own", "--format", "markdown"])
    run(program, own, ["verify", "own"])
    gate = ["gate", *sweep[1:], "--replicas", "1", "--mode", "weak", "--repeats", "3"]
    run(program, own, [*gate, "--baseline", "HEAD^"], _REGRESSION)


def main(argv: Sequence[str]) -> int:
    """Installs the wheel into a new environment and follows the quick start there."""
    (wheel,) = argv
    with tempfile.TemporaryDirectory() as name:
        environment = Path(name) / "environment"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        subprocess.run(
            [
                *(str(python), "-m", "pip", "install", "--quiet"),
                *("--disable-pip-version-check", os.fspath(Path(wheel).resolve())),
            ],
            check=True,
        )
        follow(python, Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

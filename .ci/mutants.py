"""Plants defects in the product, one at a time, and prints which test catches each.

    python .ci/mutants.py [ROOM ...]

Each ``tests/mutants/<room>.toml`` lists defects of one part of the tree: an exact
piece of text that stands once in a product file, what it becomes, what a user would
see, and the test that caught it last. That test runs first; if it passes, the files
that ``make test-changed`` would run. Product files are planted as committed, tests as
they are on disk. Exits with 1 if a defect is not caught.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "mutants"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
PASSED_ALL, FAILED_SOME = 0, 1


def plant(mutant: dict[str, str], tree: Path) -> None:
    """Writes a defect into a copy of the tree, or says why it cannot be planted."""
    path = tree / mutant["file"]
    text = path.read_text(encoding="utf-8")
    times = text.count(mutant["from"])
    if times != 1:
        raise SystemExit(
            f"{mutant['file']}: {mutant['from']!r} stands there {times} times; a "
            "mutant names a piece of text that stands there once. Change the mutant."
        )
    path.write_text(text.replace(mutant["from"], mutant["to"]), encoding="utf-8")


def run(tests: list[str], tree: Path) -> tuple[int, str]:
    """Runs tests in a tree until the first fails; returns the status and its name."""
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-x", "-q", *tests),
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (PASSED_ALL, FAILED_SOME):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout}{done.stderr}")
    found = FAILED.search(done.stdout)
    return done.returncode, found.group(1) if found else ""


def catch(mutant: dict[str, str], tree: Path) -> str:
    """Returns the first test that fails with a defect, or nothing."""
    plant(mutant, tree)
    status, name = run([mutant["caught_by"]], tree)
    if status == PASSED_ALL:
        listed = subprocess.run(
            (sys.executable, ".ci/changed_tests.py", "HEAD"),
            cwd=tree,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        _, name = run(listed, tree) if listed else (PASSED_ALL, "")
    return name


def main(rooms: list[str]) -> int:
    """Plants the defects of some rooms, or of all."""
    missed = 0
    total = 0
    files = [LISTS / f"{room}.toml" for room in rooms] or sorted(LISTS.glob("*.toml"))
    for file in files:
        for mutant in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                tree = Path(folder) / "tree"
                # A clone, with what is not committed yet: tests read git.
                subprocess.run(
                    ("git", "clone", "-q", "--shared", str(ROOT), str(tree)), check=True
                )
                shutil.copytree(ROOT / "tests", tree / "tests", dirs_exist_ok=True)
                name = catch(mutant, tree)
            total += 1
            missed += not name
            seconds = time.monotonic() - start
            print(
                f"{'caught' if name else 'NOT CAUGHT'} in {seconds:.0f} s: "
                f"{mutant['file']}: {mutant['breaks']} ({name or mutant['caught_by']})",
                flush=True,
            )
    print(f"{total - missed} of {total} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

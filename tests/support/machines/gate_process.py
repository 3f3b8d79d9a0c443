"""A real gate of one small case, in a process of its own or in the test's."""

import re
import sys
from pathlib import Path

from repositories import git

TESTS = Path(__file__).resolve().parents[2]
WORKER = (sys.executable, str(TESTS / "harness" / "judging" / "gate_worker.py"))
# At this alpha five repetitions can pass.
GATE = (
    "gate",
    "--workload=resnet50",
    "--preset=smoke",
    "--backends=in_graph",
    "--replicas=1",
    "--mode=weak",
    "--repeats=5",
    "--alpha=45%",
    "--measure-equal",
)
# Arguments: the repository, and then those of the harness.
DRIVER = f"""
import pathlib, sys
from harness.cli.main import main
from harness.judging import revisions
revisions.SOURCE_ROOT = pathlib.Path(sys.argv.pop(1))
overrides = {{"worker_command": {WORKER!r}, "canary": lambda core: 0.2}}
sys.exit(main(run_overrides=overrides))
"""


def worktrees(repository):
    """Returns what git knows of worktrees besides the repository itself."""
    listed = git(repository, "worktree", "list", "--porcelain")
    return re.findall(r"^worktree (.*)", listed, re.MULTILINE)[1:]

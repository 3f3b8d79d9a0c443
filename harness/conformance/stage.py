"""Starts a program as a trial does, and speaks with it as a relay does."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.client.scaling_client import ADDRESS_VARIABLE, TRIAL_FILE
from harness.command import placeholders
from harness.command.worker import free_port
from harness.placement.processes import Processes
from harness.run import trial_tree
from harness.run.trial_tree import ProcessTree
from harness.trial import process_tree
from results.records.client.protocol import TrialFile
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence

ASKED: Final[dict[str, Any]] = {
    "num_replicas": 2,
    "per_replica_batch_size": 4,
    "global_batch_size": 8,
    "unit": "examples",
    "seed": 7,
    "num_warmup_steps": 3,
    "num_measured_steps": None,
    "control": "none",
    "is_evaluated": True,
}
"""What the trials of the checks ask for."""
# The last argument is the directory of the trial, which programs find in a variable.
_START: Final = """
import os, sys
os.chdir(sys.argv[1])
os.execvp(sys.argv[2], sys.argv[2:-1])
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """A trial of a check, in the form that ``Resident`` starts."""

    trial_dir: Path  # Its directory.
    command: tuple[str, ...]  # What starts it.
    variables: dict[str, str]  # Environment variables of its processes.
    # One is planned; a program says itself how many it has.
    processes: Processes = dataclasses.field(
        default_factory=lambda: Processes(members=(), num_ranks=1)
    )
    is_client: bool = True  # Always.

    def tree(self) -> ProcessTree:
        """Returns its processes, planned; it runs alone."""
        return ProcessTree(self.trial_dir, self.variables, self.command)

    def stderr(self) -> str:
        """Returns what it wrote to stderr."""
        return untrusted.tail(self.trial_dir / "stderr.log", 2**20)


def stage(folder: Path, command: Sequence[str], **asked: Any) -> Staged:
    """Returns a trial whose directory is ready."""
    folder.mkdir()
    version = asked.pop("protocol", None)
    content = TrialFile.model_validate({**ASKED, **asked}).model_dump(mode="json")
    if version is not None:
        content["protocol"] = version
    (folder / TRIAL_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")
    output_dir = folder / "output"
    output_dir.mkdir()
    values = {
        **content,
        "replicas": content["num_replicas"],
        "workers": content["num_replicas"],
        "replicas_per_worker": 1,
        "cores": len(os.sched_getaffinity(0)),
        "gpus": 0,
        "port": free_port(),
        "output_dir": output_dir,
    }
    words = placeholders.fill_words(command, values)
    variables = {k: v for k, v in os.environ.items() if k != ADDRESS_VARIABLE}
    variables |= {
        process_tree.MARKER: str(folder.resolve()),
        trial_tree.VARIABLE: str(trial_tree.folder_of(folder)),
    }
    return Staged(
        trial_dir=folder,
        command=(sys.executable, "-c", _START, str(Path.cwd()), *words),
        variables=variables,
    )

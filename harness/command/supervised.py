"""Runs a program whose processes connect to the harness by the client.

They write their own rank files and take turns; this process keeps what they print,
ends what outlives the program, and says what is wrong where none has connected.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from harness.client.scaling_client import (
    ClientError,
    LostHarnessError,
    RankFile,
    rank_path,
)
from harness.command import first_losses
from harness.command.errors import CommandError
from harness.command.first_cause import described
from harness.command.kept_output import KeptOutput
from harness.command.running import Run
from harness.trial import process_tree
from harness.trial.ending import end_like
from harness.trial.rank_file import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run(
    words: Sequence[str], folder: Path, variables: Mapping[str, str], trial_dir: Path
) -> int:
    """Runs a program to its end; returns its exit code."""
    kept = (KeptOutput(1), KeptOutput(2))

    def keep(stream: int, chunk: bytes, _ns: int) -> bool:
        kept[stream].add(chunk)
        return False

    # Its processes say themselves what they use; looking through all processes every
    # second would take from the turns of other trials.
    running, why = Run(is_sampled=False), ""
    try:
        running.run(words, folder, variables, keep, 0)
    except CommandError as error:
        why = str(error)
    except LostHarnessError:
        process_tree.kill_tree(os.environ[process_tree.MARKER])
        return 1
    finally:
        for stream in kept:
            stream.end()
    code = running.exit_code
    if not rank_path(trial_dir, 0).exists():
        last = described(kept[1].last_bytes, kept[0].last_bytes)
        _fail(trial_dir, why or _never_connected(code, last))
        return 1
    first_losses.check(trial_dir)
    return 1 if code is None else end_like(code)


def _never_connected(code: int | None, last: str) -> str:
    if code:
        return f"the command exited with code {code}, before it had connected; {last}"
    return (
        "the command ended well, and no process of it had connected: call"
        " scaling_client.connect() in it, or give --metric NAME=PATTERN for what it"
        f" prints; {last}"
    )


def _fail(trial_dir: Path, reason: str) -> None:
    file = RankFile(rank_path(trial_dir, 0), time.monotonic_ns)
    file.fail(ClientError(one_line(reason)))
    file.close()

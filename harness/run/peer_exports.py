"""Exports what the trials of peers begin with: once for each size, and code of ours.

Our step runs a few times, untimed, in a process with TensorFlow. What it began with,
and its losses, are kept in the folder of prepared data, for later studies as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from harness import catalog
from harness.errors import StudyError
from harness.run.trial_tree import SOURCE_ROOT
from harness.sources import code_digest
from harness.trial.rank_file import one_line
from results.records import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from results.records.models import PlannedTrial, TrialSpec

_MOST: Final = 12
"""Exports that are kept; one of ResNet-50 has 100 MB."""


def run_missing(
    trials: Iterable[PlannedTrial],
    stage: Callable[[str, float | None], None],
    *,
    timeout_sec: float,
) -> dict[str, Path]:
    """Exports what is missing; returns the folder of each trial of a peer, by id."""
    found: dict[str, Path] = {}
    for trial in trials:
        peer = catalog.peer(trial.spec.backend)
        if peer is None:
            continue
        request = _request(trial.spec)
        code = code_digest.of_trial(trial.spec.workload, catalog.EXPORTED_BACKEND)
        folder = catalog.exports_dir() / identity.digest({**request, "code": code})
        if not folder.is_dir():
            stage(
                f"exporting weights and first batches of {trial.spec.workload}"
                f" x{trial.spec.num_replicas} for other frameworks, untimed",
                None,
            )
            _export(peer.exporter, folder, request, timeout_sec)
        os.utime(folder)
        found[trial.trial_id] = folder
    if found:
        _remove_oldest({*found.values()})
    return found


def _request(spec: TrialSpec) -> dict[str, Any]:
    return {
        "workload": spec.workload,
        "preset": spec.preset,
        "options": dict(spec.options),
        "data": spec.data,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "num_replicas": spec.num_replicas,
    }


def _export(
    module: str, folder: Path, request: dict[str, Any], timeout_sec: float
) -> None:
    paths = [str(SOURCE_ROOT), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, str(folder), json.dumps(request)],
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_sec,
        )
    except subprocess.TimeoutExpired:
        raise StudyError(
            f"exporting what other frameworks begin with took more than"
            f" {timeout_sec:g} s; give more --timeout, or leave them out of --backends"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise StudyError(
            f"exporting what other frameworks begin with failed: {one_line(last)};"
            f" 'python -m {module} FOLDER REQUEST' shows all of it"
        )


def _remove_oldest(used: set[Path]) -> None:
    """Removes the exports that were not used for longest, beyond the most."""
    folders = sorted(
        (path for path in catalog.exports_dir().iterdir() if path.is_dir()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for folder in folders[_MOST:]:
        if folder not in used:
            shutil.rmtree(folder, ignore_errors=True)

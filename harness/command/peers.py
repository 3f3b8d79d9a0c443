"""Peers: the steps of our workloads in other frameworks, as programs with a client.

A peer is a backend of the catalogue whose trials start a program of
``workloads/peers``, in an environment of its own, in place of our worker. Its processes
take turns as those of any program that connects.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness import SOURCE_ROOT, catalog
from harness.errors import PlanError
from harness.trial.rank_file import RankFileError, rank_path, read_rank
from results.records import identity
from results.records.models import Control, PlannedTrial, Program, TrialSpec
from results.records.program import CLIENT
from results.records.record_base import MAX_NAME
from results.store import writing
from results.study.equivalence import LOSS_TOLERANCE, OWN_CHECK

# A peer begins with exported weights, and takes its first steps on exported batches.
# Our own process compares the losses that its processes have recorded with those of
# ``in_graph``, which are in the export, and adds the result to the checks of the trial.

TOLERANCES: Final = {"float32": LOSS_TOLERANCE, "mixed_bfloat16": 2.0**-6}
"""Relative, by the type that layers compute in.

bfloat16 has 8 bits. Rounding to them moves a number by at most ``2**-8`` of itself, and
by 0.41 of that in the mean square. In ResNet-50, 49 convolutions and 49 normalizations
follow one another, and each rounds: if independently, by ``0.41 * sqrt(98) = 4`` times
``2**-8`` together.
"""
_AS_EVER: Final = (Control.NONE, Control.AA)


def check_losses(trial_dir: Path, spec: TrialSpec) -> None:
    """Adds the check to the records of a trial of a peer; nothing for other trials."""
    folder = os.environ.get(catalog.EXPORT_VARIABLE)
    if folder is None:
        return
    text = Path(folder, catalog.EXPORT_SETTINGS).read_text(encoding="utf-8")
    export = json.loads(text)
    number = spec.num_warmup_steps if spec.control in _AS_EVER else 1
    try:
        is_passed, detail = compare(
            _mean_losses(trial_dir),
            export["losses"][:number],
            f"{catalog.EXPORTED_BACKEND} x{spec.num_replicas}",
            TOLERANCES[export["config"]["compute_dtype"]],
        )
    except RankFileError:
        return
    fields = {"name": OWN_CHECK, "is_passed": is_passed, "detail": detail}
    path = rank_path(trial_dir, 0)
    with writing.named(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "sanity", **fields}) + "\n")


def _mean_losses(trial_dir: Path) -> list[float | None]:
    first = read_rank(trial_dir, 0)
    others = (read_rank(trial_dir, rank) for rank in range(1, first.num_ranks or 1))
    means: list[float | None] = []
    for steps in zip(first.steps, *(log.steps for log in others), strict=False):
        losses = [step.loss for step in steps if step.loss is not None]
        is_whole = len(losses) == len(steps)
        means.append(statistics.fmean(losses) if is_whole else None)
    return means


def compare(
    measured: Sequence[float | None],
    expected: Sequence[float],
    source: str,
    tolerance: float,
) -> tuple[bool, str]:
    """Returns whether first losses are those that are expected, and how they differ."""
    start = f"from the same weights and batches, {source} has"
    largest = 0.0
    for index, wanted in enumerate(expected):
        loss = measured[index] if index < len(measured) else None
        if loss is None:
            return False, f"step {index} has no loss; {start} {wanted:.6g}"
        apart = abs(loss - wanted) / max(abs(loss), abs(wanted), 1e-30)
        if not apart <= tolerance:
            return False, (
                f"the loss of step {index} is {loss:.6g}; {start} {wanted:.6g}, which"
                f" is {apart:.1e} apart (at most {tolerance:.2g}, relative)"
            )
        largest = max(largest, apart)
    return True, (
        f"{len(expected)} first losses, from the weights and batches of {source}: at"
        f" most {largest:.1e} apart, relative"
    )


STAMP: Final = ".installed"
"""In an environment: the digest of the lock that it was made from."""
_CLIENT: Final = "harness/client"


def lock_digest(root: Path, peer: catalog.PeerInfo) -> str:
    return identity.digest((root / peer.lock).read_text(encoding="utf-8"))


def environment_of(root: Path, peer: catalog.PeerInfo) -> Path:
    return root / "build" / "peers" / peer.environment


def check(
    info: catalog.WorkloadInfo,
    backends: Sequence[catalog.BackendInfo],
    *,
    preset: str,
    options: Mapping[str, Any],
    data: str,
    device: str,
    steps_per_sync: int | None,
) -> None:
    for peer in backends:
        if not isinstance(peer, catalog.PeerInfo):
            continue
        if info.name in peer.programs:
            config = info.make_config(preset, options)
            reason = catalog.unsupported(peer.programs[info.name], config, data)
        else:
            reason = f"workload {info.name}, but has {' and '.join(peer.programs)} only"
        if device != "cpu":
            reason = f"device {device!r}, but runs on CPUs only"
        if (steps_per_sync or 1) > 1:
            reason = f"--set steps-per-sync={steps_per_sync}, but reads each loss"
        if reason:
            raise PlanError(
                f"backend {peer.name!r} does not have {reason}; leave it out of"
                " --backends"
            )


def check_environments(
    trials: Iterable[PlannedTrial], launcher: str, only: str, root: Path = SOURCE_ROOT
) -> None:
    """Checks that the peers of a plan can start here, before anything is written."""
    specs = {trial.spec.backend: trial.spec for trial in trials}
    for name, spec in specs.items():
        peer = catalog.PEERS.get(name)
        if peer is None:
            continue
        if launcher != only:
            raise PlanError(
                f"backend {name!r} does not start by --launcher {launcher}, but by"
                f" {only} only; leave it out of --backends"
            )
        if spec.revision:
            raise PlanError(
                f"backend {name!r} is no code of a revision: a gate judges this tree;"
                " leave it out of --backends"
            )
        folder = environment_of(root, peer)
        try:
            made_from = (folder / STAMP).read_text(encoding="utf-8").strip()
        except OSError:
            made_from = ""
        if made_from != lock_digest(root, peer):
            why = "is of another lock" if made_from else "is not there"
            raise PlanError(
                f"backend {name!r} runs in the environment 'build/peers/"
                f"{peer.environment}' of a checkout, which {why}; run"
                " 'make setup-peers', or leave it out of --backends"
            )


def program(workload: str, backend: str, unit: str) -> Program | None:
    peer = catalog.PEERS.get(backend)
    if peer is None:
        return None
    return Program(command=peer.command(workload), metric=CLIENT, unit=unit)


def packages(root: Path, peer: catalog.PeerInfo) -> dict[str, str]:
    folder = environment_of(root, peer)
    paths = [str(path) for path in folder.glob("lib/python*/site-packages")]
    versions = {
        str(package.metadata["Name"])[:MAX_NAME]: package.version[:MAX_NAME]
        for package in importlib.metadata.distributions(path=paths)
    }
    return {**dict(sorted(versions.items())), peer.lock: lock_digest(root, peer)}


def variables(root: Path, given: Mapping[str, str], export: Path) -> dict[str, str]:
    """Returns the variables of a trial of a peer: it can import the client."""
    paths = given.get("PYTHONPATH", "").split(os.pathsep)
    places = [*paths[:1], str(root / _CLIENT), *paths[1:]]
    return {
        **given,
        "PYTHONPATH": os.pathsep.join(places),
        catalog.EXPORT_VARIABLE: str(export),
    }


def main() -> None:
    for peer in catalog.PEERS.values():
        words = (peer.environment, peer.lock, lock_digest(SOURCE_ROOT, peer))
        sys.stdout.write(" ".join(words) + "\n")


if __name__ == "__main__":
    main()

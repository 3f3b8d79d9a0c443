"""Compares the files of a study with its seal, and says what no comparison covers."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from results.store import earlier, seal, untrusted
from results.store.study_store import MATCHING_NAME, PLAN_NAME, TRIALS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from results.store.study_store import Store
    from results.verify.check import Check

_KIND: Final = "seal"
ALWAYS: Final = (
    "that the machine did what was recorded: whoever runs a sweep can record anything"
)
NOT_SIGNED: Final = (
    "a study whose records and whose seal were both made anew, or whose last lines were"
    " cut off with what they seal: the seal is not signed (ssh-keygen -Y sign -n"
    " replicator-harness -f KEY seal.jsonl)"
)
NOT_SEALED: Final = (
    "trials that were removed, and machine, commit, command, load and pictures that"
    " were changed: {} of {} finished trials are not sealed"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """What the seal of a study covers.

    Attributes:
      num_sealed: Finished trials whose files it has.
      num_unsealed: Finished trials that are not in it, of an earlier version.
      head: Digest of its last line; empty without a seal.
    """

    num_sealed: int
    num_unsealed: int
    head: str


def compare(store: Store, check: Check) -> Sealed:
    """Compares every sealed file, and finds what is missing, added or exchanged.

    Raises:
      UnavailableRecordError: The file system does not answer.
    """
    try:
        found = seal.read(store.root)
    except (seal.BrokenSealError, untrusted.DamagedFileError) as error:
        check.differ(_KIND, seal.SEAL_NAME, "a chain", str(error))
        found = None
    lines, head = found or ([], "")
    latest = {line["of"]: line["files"] for line in lines}
    _compare_plan(store, lines, check)
    nonces: dict[str, str] = {}
    num_sealed = num_unsealed = 0
    finished = dict(_finished(store))
    for of, folder_store in finished.items():
        folder = folder_store.trial_dir(of.rpartition("/")[2])
        try:
            files = seal.evidence_in(folder)
            is_marked = _compare_marks(of, folder_store, check, nonces)
        except untrusted.DamagedFileError as error:
            check.differ(_KIND, of, "readable files", str(error))
            continue
        if of in latest:
            num_sealed += 1
            _compare_files(of, latest[of], files, check)
        elif is_marked:
            check.differ(
                _KIND, of, "a line of the seal", "none, though it was measured with one"
            )
        else:
            num_unsealed += 1
    for of, files in latest.items():
        if of in finished or "status.json" not in files:
            continue
        if _is_kept_aside(store, of, files):
            check.lack(
                _KIND,
                f"{of} was to be measured again, and is not yet: what it had"
                f" measured is in {earlier.EARLIER_NAME}/; resume the study",
            )
        else:
            check.differ(_KIND, of, "sealed when it had ended", "it is not there")
    return Sealed(num_sealed=num_sealed, num_unsealed=num_unsealed, head=head)


def not_covered(sealed: Sealed, *, is_signed: bool) -> tuple[str, ...]:
    """Returns what was not verified, one line each."""
    parts = []
    total = sealed.num_sealed + sealed.num_unsealed
    if sealed.num_unsealed or not sealed.head:
        parts.append(NOT_SEALED.format(sealed.num_unsealed, total))
    if sealed.head and not is_signed:
        parts.append(NOT_SIGNED)
    return (*parts, ALWAYS)


def _finished(store: Store) -> Iterator[tuple[str, Store]]:
    for of, part in (
        (TRIALS_NAME, store),
        (f"{MATCHING_NAME}/{TRIALS_NAME}", store.matching),
    ):
        for trial_id in part.trial_ids():
            if "status.json" in untrusted.names_in(part.trial_dir(trial_id)):
                yield f"{of}/{trial_id}", part


def _is_kept_aside(store: Store, of: str, files: Mapping[str, str]) -> bool:
    """Whether an earlier attempt at a trial has what the seal has of the trial."""
    # A kill after the line of the seal and before the status leaves no status.
    ended = ({**files}, {k: v for k, v in files.items() if k != "status.json"})
    part = store.matching if of.startswith(f"{MATCHING_NAME}/") else store
    for folder in earlier.attempts(part.root, of.rpartition("/")[2]):
        with contextlib.suppress(untrusted.DamagedFileError):
            if seal.evidence_in(folder) in ended:
                return True
    return False


def _compare_plan(
    store: Store, lines: Sequence[Mapping[str, Any]], check: Check
) -> None:
    plans = [line["files"].get(PLAN_NAME) for line in lines if line["of"] == PLAN_NAME]
    if not plans:
        return
    allowed = plans[-1:]
    if lines[-1]["of"] == PLAN_NAME:  # a kill between the line and the file
        allowed = plans[-2:]
    try:
        own = seal.digest(untrusted.read_bytes(store.root / PLAN_NAME) or b"")
    except untrusted.DamagedFileError as error:
        own = str(error)
    if own not in allowed:
        check.differ(_KIND, PLAN_NAME, plans[-1], own)


def _compare_files(
    of: str, sealed: dict[str, str], files: dict[str, str], check: Check
) -> None:
    for name in sorted({*sealed, *files}):
        if sealed.get(name) != files.get(name):
            check.differ(
                _KIND,
                f"{of}/{name}",
                sealed.get(name, "not there when it ended"),
                files.get(name, "not there"),
            )


def _compare_marks(of: str, store: Store, check: Check, nonces: dict[str, str]) -> bool:
    """Whether the observations say whose they are; each file has a nonce of its own."""
    trial_id = of.rpartition("/")[2]
    folder = store.trial_dir(trial_id)
    is_marked = False
    for name in sorted(untrusted.names_in(folder)):
        if not name.startswith("rank_") or not seal.EVIDENCE.fullmatch(name):
            continue
        content = untrusted.read_bytes(folder / name) or b""
        try:
            mark = untrusted.parsed(content.partition(b"\n")[0])
            own, nonce = mark["trial_id"], mark["nonce"]
        except (ValueError, LookupError, TypeError):
            continue  # of an earlier version
        is_marked = True
        if own != trial_id:
            check.differ(_KIND, f"{of}/{name}", trial_id, f"observations of {own}")
        if str(nonce) in nonces:
            check.differ(
                _KIND, f"{of}/{name}", "observed once", f"as {nonces[str(nonce)]}"
            )
        nonces[str(nonce)] = f"{of}/{name}"
    return is_marked

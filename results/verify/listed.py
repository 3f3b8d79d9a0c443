"""Compares the files of a study with its manifest; says what no comparison covers."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from results.judging.gate_file import GATE_NAME
from results.store import earlier, manifest, untrusted, varied
from results.store.manifest import MANIFEST_NAME
from results.store.study_store import MATCHING_NAME, PLAN_NAME, TRIALS_NAME, VARIED_NAME

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from results.store.manifest import Listed
    from results.store.study_store import Store
    from results.verify.check import Check

_KIND: Final = "files"
_OLD_SEAL: Final = "seal.jsonl"
NOT_COVERED: Final = (
    "that the machine did what was recorded, and a study whose records and whose"
    f" {MANIFEST_NAME} were both made anew: whoever measures can record anything"
)
NOT_LISTED: Final = (
    "trials that were removed, and machine, commit, command, load and pictures that"
    f" were changed: {{}} of {{}} finished trials are not in {MANIFEST_NAME}"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """Finished trials whose files the manifest has, and those of earlier versions."""

    num_listed: int
    num_unlisted: int


def compare(store: Store, check: Check) -> Covered:
    """Compares every listed file, and finds what is missing, added or exchanged."""
    is_old = _OLD_SEAL in untrusted.names_in(store.root)
    marked = _compare_marks(store, check)
    marked = set() if is_old else marked
    finished = list(_folders(store, "status.json"))
    try:
        found = manifest.read(store.root)
    except untrusted.DamagedFileError as error:
        check.differ(_KIND, MANIFEST_NAME, "a manifest", str(error))
        return Covered(num_listed=0, num_unlisted=len(finished))
    if found is None:
        if marked:
            check.differ(_KIND, MANIFEST_NAME, "digests of all files", "not there")
        return Covered(num_listed=0, num_unlisted=len(finished))
    again = set(_to_be_measured_again(store, found, check))
    present = dict(_present(store, finished))
    unlisted = set(finished) - {path.rpartition("/")[0] for path in found.sums}
    for of in sorted(unlisted & marked):
        check.differ(
            _KIND, of, f"a trial in {MANIFEST_NAME}", "not listed, though it has ended"
        )
    for path in sorted({*found.sums, *present}):
        if path.rpartition("/")[0] in again | unlisted:
            continue
        stated = found.sums.get(path, "not there")
        own = present.get(path, manifest.NOTHING)
        if own not in (stated, found.before.get(path)):
            own = "not there" if own == manifest.NOTHING else own
            check.differ(_KIND, path, stated, own)
    num_unlisted = len(unlisted)
    return Covered(num_listed=len(finished) - num_unlisted, num_unlisted=num_unlisted)


def compare_index(root: pathlib.Path, check: Check) -> None:
    """Compares which studies a varied one has with its manifest and its folders."""
    index = varied.read(root)
    folders = {of.name for of in untrusted.folders_with(root, PLAN_NAME)}
    for name in sorted(folders - set(index.studies if index else ())):
        check.differ(_KIND, f"{name}/", f"not in {VARIED_NAME}", "a study")
    try:
        found = manifest.read(root)
    except untrusted.DamagedFileError as error:
        check.differ(_KIND, MANIFEST_NAME, "a manifest", str(error))
        return
    own = manifest.digest_of(root / VARIED_NAME)
    if found is None:
        return  # of an earlier version
    stated = found.sums.get(VARIED_NAME, "not there")
    if own not in (stated, found.before.get(VARIED_NAME)):
        check.differ(_KIND, VARIED_NAME, stated, own)


def not_covered(covered: Covered) -> tuple[str, ...]:
    """Returns what was not verified, one line each."""
    if not covered.num_unlisted:
        return (NOT_COVERED,)
    total = covered.num_listed + covered.num_unlisted
    return NOT_LISTED.format(covered.num_unlisted, total), NOT_COVERED


def _folders(store: Store, name: str) -> Iterator[str]:
    """Yields the folders of trials that have a file of this name."""
    for place in (TRIALS_NAME, f"{MATCHING_NAME}/{TRIALS_NAME}"):
        folder = store.root / place
        for trial in sorted(untrusted.names_in(folder)):
            if name in untrusted.names_in(folder / trial):
                yield f"{place}/{trial}"


def _present(store: Store, finished: list[str]) -> Iterator[tuple[str, str]]:
    """Yields path and digest of what is there and would be listed."""
    kept = [
        folder.relative_to(store.root).as_posix()
        for root in (store.root, store.matching.root)
        for folder in earlier.attempts(root)
    ]
    names: dict[str, Any] = {
        of: filter(
            manifest.EVIDENCE.fullmatch, sorted(untrusted.names_in(store.root / of))
        )
        for of in (*finished, *kept)
    }
    paths = [f"{of}/{name}" for of, files in names.items() for name in files]
    top = untrusted.names_in(store.root)
    paths += [name for name in (PLAN_NAME, GATE_NAME) if name in top]
    for path in paths:
        own = "unreadable"
        with contextlib.suppress(untrusted.DamagedFileError):
            own = manifest.digest_of(store.root / path)
        yield path, own


def _to_be_measured_again(store: Store, found: Listed, check: Check) -> Iterator[str]:
    """Yields trials that ended and are not there, and says why."""
    for path in found.sums:
        of, _, name = path.rpartition("/")
        if name != "status.json" or of.startswith(earlier.EARLIER_NAME):
            continue
        if untrusted.is_there(store.root / path):
            continue
        if found.before.get(path) == manifest.NOTHING:
            check.lack(
                _KIND, f"{of} was stopped as it ended; run the same command again"
            )
        elif _is_kept_aside(store.root / of, of, found):
            check.lack(
                _KIND,
                f"{of} was to be measured again, and is not yet: what it had"
                f" measured is in {earlier.EARLIER_NAME}/; run the same command again",
            )
        else:
            check.differ(_KIND, of, "listed when it had ended", "it is not there")
        yield of


def _is_kept_aside(trial_dir: pathlib.Path, of: str, found: Listed) -> bool:
    """Whether an earlier attempt at a trial has what is listed of the trial."""
    listed = {
        p.rpartition("/")[2]: d for p, d in found.sums.items() if p.startswith(of)
    }
    # A kill as it ended leaves no status.
    ended = (listed, {k: v for k, v in listed.items() if k != "status.json"})
    for folder in earlier.attempts(trial_dir.parent.parent, trial_dir.name):
        with contextlib.suppress(untrusted.DamagedFileError):
            if manifest.evidence_in(folder) in ended:
                return True
    return False


def _compare_marks(store: Store, check: Check) -> set[str]:
    """Returns trials whose observations say whose they are, each with its nonce."""
    marked = set()
    nonces: dict[str, str] = {}
    for of in _folders(store, "status.json"):
        trial_id = of.rpartition("/")[2]
        for name in sorted(untrusted.names_in(store.root / of)):
            if not name.startswith("rank_") or not manifest.EVIDENCE.fullmatch(name):
                continue
            try:
                content = untrusted.read_bytes(store.root / of / name) or b""
                mark = untrusted.parsed(content.partition(b"\n")[0])
                own, nonce = mark["trial_id"], str(mark["nonce"])
            except (ValueError, LookupError, TypeError):
                continue  # of an earlier version, or compared as a file
            where = f"{of}/{name}"
            marked.add(of)
            if own != trial_id:
                check.differ(_KIND, where, trial_id, f"observations of {own}")
            if nonce in nonces:
                check.differ(_KIND, where, "observed once", f"as {nonces[nonce]}")
            nonces[nonce] = where
    return marked

"""Compares the files of a study with its manifest; says what no comparison covers."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from results.judging.gate_logs import GATE_NAME
from results.store import manifest, study_store, untrusted
from results.store.manifest import MANIFEST_NAME, NOTHING
from results.store.study_store import MATCHING_NAME, PLAN_NAME, TRIALS_NAME

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Iterator

    from results.store.manifest import Listed
    from results.store.study_store import Store
    from results.verify.check import Check

KIND: Final = "files"
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
    """Finished trials whose files the manifest has, and trials of earlier versions."""

    num_listed: int
    num_unlisted: int

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What was not verified, one line each."""
        total = self.num_listed + self.num_unlisted
        not_listed = (NOT_LISTED.format(self.num_unlisted, total),)
        return *not_listed * bool(self.num_unlisted), NOT_COVERED


def compare(store: Store, check: Check) -> Covered:
    """Compares every listed file, and finds what is missing, added or exchanged."""
    finished = {
        f"{place}/{name}"
        for place in (TRIALS_NAME, f"{MATCHING_NAME}/{TRIALS_NAME}")
        for name in untrusted.names_in(store.root / place)
        if "status.json" in untrusted.names_in(store.root / place / name)
    }
    marked = _compare_marks(store, sorted(finished), check)
    if _OLD_SEAL in untrusted.names_in(store.root):
        marked = set()
    found = read_manifest(store.root, check)
    if found is None:
        if marked and not untrusted.is_there(store.root / MANIFEST_NAME):
            check.differ(KIND, MANIFEST_NAME, "digests of all files", "not there")
        return Covered(num_listed=0, num_unlisted=len(finished))
    left_out = set(_to_be_measured_again(store, found, check))
    unlisted = finished - {path.rpartition("/")[0] for path in found.sums}
    for of in sorted(unlisted & marked):
        check.differ(KIND, of, f"in {MANIFEST_NAME}", "not listed, though it has ended")
    present = dict(_present(store, finished))
    for path in sorted({*found.sums, *present}):
        if path.rpartition("/")[0] not in left_out | unlisted:
            compare_digest(path, present.get(path, NOTHING), found, check)
    return Covered(num_listed=len(finished - unlisted), num_unlisted=len(unlisted))


def read_manifest(root: pathlib.Path, check: Check) -> Listed | None:
    """Returns what is listed; None where that cannot be read, or there is nothing."""
    try:
        return manifest.read(root)
    except untrusted.DamagedFileError as error:
        check.differ(KIND, MANIFEST_NAME, "a manifest", str(error))
        return None


def compare_digest(path: str, own: str, found: Listed, check: Check) -> None:
    """Compares the digest of a file with what is listed, or was before a kill."""
    stated = found.sums.get(path, "not there")
    if own not in (stated, found.before.get(path)):
        check.differ(KIND, path, stated, "not there" if own == NOTHING else own)


def _evidence(store: Store, folder: str) -> list[str]:
    names = sorted(untrusted.names_in(store.root / folder))
    return [f"{folder}/{name}" for name in filter(manifest.EVIDENCE.fullmatch, names)]


def _present(store: Store, finished: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields path and digest of what is there and would be listed."""
    kept = (
        folder.relative_to(store.root).as_posix()
        for root in (store.root, store.matching.root)
        for folder in study_store.attempts(root)
    )
    paths = [path for of in (*finished, *kept) for path in _evidence(store, of)]
    top = untrusted.names_in(store.root) & {PLAN_NAME, GATE_NAME}
    for path in (*paths, *top):
        own = "unreadable"
        with contextlib.suppress(untrusted.DamagedFileError):
            own = manifest.digest_of(store.root / path)
        yield path, own


def _to_be_measured_again(store: Store, found: Listed, check: Check) -> Iterator[str]:
    """Yields trials that ended and are not there, and says why."""
    again = "run the same command again"
    for path in found.sums:
        of, _, name = path.rpartition("/")
        if name != "status.json" or of.startswith(study_store.EARLIER_NAME):
            continue
        if untrusted.is_there(store.root / path):
            continue
        if found.before.get(path) == NOTHING:
            check.lack(KIND, f"{of} was stopped as it ended; {again}")
        elif _is_kept_aside(store.root / of, of, found):
            check.lack(
                KIND,
                f"{of} was to be measured again, and is not yet: what it had"
                f" measured is in {study_store.EARLIER_NAME}/; {again}",
            )
        else:
            check.differ(KIND, of, "listed when it had ended", "it is not there")
        yield of


def _is_kept_aside(trial_dir: pathlib.Path, of: str, found: Listed) -> bool:
    """Whether an earlier attempt at a trial has what is listed of the trial."""
    listed = {
        p.rpartition("/")[2]: d for p, d in found.sums.items() if p.startswith(of)
    }
    # A kill as it ended leaves no status.
    ended = (listed, {k: v for k, v in listed.items() if k != "status.json"})
    for folder in study_store.attempts(trial_dir.parent.parent, trial_dir.name):
        with contextlib.suppress(untrusted.DamagedFileError):
            if manifest.evidence_in(folder) in ended:
                return True
    return False


def _compare_marks(store: Store, finished: Iterable[str], check: Check) -> set[str]:
    """Returns trials whose observations say whose they are, each with its nonce."""
    marked = set()
    nonces: dict[str, str] = {}
    for of in finished:
        trial_id = of.rpartition("/")[2]
        for where in _evidence(store, of):
            if not where.startswith(f"{of}/rank_"):
                continue
            try:
                content = untrusted.read_bytes(store.root / where) or b""
                mark = untrusted.parsed(content.partition(b"\n")[0])
                own, nonce = mark["trial_id"], str(mark["nonce"])
            except (ValueError, LookupError, TypeError):
                continue  # of an earlier version, or compared as a file
            marked.add(of)
            if own != trial_id:
                check.differ(KIND, where, trial_id, f"observations of {own}")
            if nonce in nonces:
                check.differ(KIND, where, "observed once", f"as {nonces[nonce]}")
            nonces[nonce] = where
    return marked

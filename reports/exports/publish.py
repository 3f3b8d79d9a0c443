"""A copy of a study for the world: what is listed here, after a search, or nothing.

What a figure is made of is published: the plan, the records, the raw observations, the
pictures, and a page that is made anew. Output of processes, tracebacks, checkpoints and
whatever else lies in the study stay there. Every file is searched for secrets and for
names of this machine before any of them is in its place.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any, Final

from reports import output_file
from reports.exports import private, secrets
from results.errors import WriteStoreError
from results.judging.gate_file import GATE_NAME
from results.store import atomic, manifest, untrusted
from results.store.study_store import MATCHING_NAME, PLAN_NAME, TRIALS_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reports.exports.private import Shown

_PNG: Final = b"\x89PNG\r\n\x1a\n"
# What a picture or a film is drawn from; text and times are in other chunks.
_CHUNKS: Final = frozenset(
    b"IHDR PLTE tRNS gAMA sRGB pHYs IDAT IEND acTL fcTL fdAT".split()
)
_CHUNK_BYTES: Final = 12
_TOP: Final = (PLAN_NAME, GATE_NAME)
_WITHHELD: Final = "withheld"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What was published, or why nothing was."""

    # The files, by their paths below the copy; none if anything was found.
    files: tuple[str, ...]
    found: tuple[Shown, ...]  # What may be private, by file.
    num_kept: int  # Files of the study that are not in the copy.


def publish(store: Store, output: Path) -> Published:
    """Writes the copy, as a whole, unless a file of it may have something private."""
    if untrusted.is_there(output):
        raise WriteStoreError(
            f"the output {str(output)!r} exists; choose a new directory, or remove it"
        )
    reading = store.read()
    if reading.problems:
        first = reading.problems[0]
        raise WriteStoreError(
            f"nothing is published: {first.label} is damaged ({first.reason}); restore"
            " it from a copy, or remove its trial and measure it again"
        )
    work = output.with_name(f"{atomic.TEMPORARY_PREFIX}{output.name}")
    shutil.rmtree(work, ignore_errors=True)
    try:
        found = [*_copy(store, work)]
        names = _names_below(work)
        if found:
            return Published(files=(), found=tuple(found), num_kept=0)
        num_kept = len(set(_names_below(store.root)) - set(names))
        work.rename(output)
        atomic.sync_or_remove(output)
    except untrusted.DamagedFileError as error:
        raise WriteStoreError(
            f"nothing is published: a file of the study is damaged: {error}; restore it"
            " from a copy, or remove its trial"
        ) from error
    except OSError as error:
        raise WriteStoreError(
            f"cannot write {str(output)!r}: {error.strerror or error}; free space, or"
            " choose a directory that this user can write to"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Published(files=names, found=(), num_kept=num_kept)


def _copy(store: Store, work: Path) -> Iterator[Shown]:
    """Writes the copy and its page; yields what may be private in it."""
    from reports.page import build

    yield from copy_records(store, work)
    page = build.build_report(Store.open(work))
    output_file.write(Store(work).report_path, page)
    yield from private.find("page", private.visible_text(page))
    yield from _secrets("page", page)


def copy_records(store: Store, work: Path) -> Iterator[Shown]:
    """Writes the records with their manifest; yields what may be private in them."""
    for name in _listed(store):
        content = untrusted.read_bytes(store.root / name)
        if content is None:
            raise FileNotFoundError(2, "it was listed, and is gone", name)
        content = _without_tracebacks(name, content)
        output_file.write(work / name, content)
        yield from _search(name, content)
    _list(store, Store.open(work))


def _list(store: Store, copy: Store) -> None:
    """Writes the manifest of the copy, whose failures have no tracebacks."""
    if manifest.read(store.root) is None:  # of an earlier version: it promises too much
        return
    top = [name for name in _TOP if untrusted.is_there(copy.root / name)]
    for name in top:
        manifest.renew(copy.root, name, {name: manifest.digest_of(copy.root / name)})
    for part in (copy, copy.matching):
        for trial_id in part.trial_ids():
            part.list_trial(trial_id)


def _listed(store: Store) -> Iterator[str]:
    top = untrusted.names_in(store.root)
    yield from (name for name in _TOP if name in top)
    for part in (store, store.matching):
        below = TRIALS_NAME if part is store else f"{MATCHING_NAME}/{TRIALS_NAME}"
        for trial_id in part.trial_ids():
            for name in sorted(untrusted.names_in(part.trial_dir(trial_id))):
                if manifest.EVIDENCE.fullmatch(name):
                    yield f"{below}/{trial_id}/{name}"


def _without_tracebacks(name: str, content: bytes) -> bytes:
    """Says of a failure where and why, not through which files of whom it went."""
    if name.endswith("/status.json"):
        record = untrusted.parsed(content)
        if _withhold(record.get("failure")):
            return (json.dumps(record, indent=1) + "\n").encode()
    if name.endswith(".jsonl") and b'"traceback"' in content:
        lines = content.splitlines(keepends=True)
        return b"".join(map(_without_traceback, lines))
    return content


def _without_traceback(line: bytes) -> bytes:
    if b'"traceback"' not in line:
        return line
    try:
        fields = untrusted.parsed(line)
    except untrusted.DamagedFileError:  # cut by a kill: nobody reads it
        return b""
    return (json.dumps(fields) + "\n").encode() if _withhold(fields) else line


def _withhold(failure: Any) -> bool:
    if isinstance(failure, dict) and failure.get("traceback"):
        failure["traceback"] = _WITHHELD
        return True
    return False


def _search(name: str, content: bytes) -> Iterator[Shown]:
    if name.endswith(".png"):
        if not _is_plain_picture(content):
            yield private.Shown(
                where=name, kind="picture", text="holds more than a picture"
            )
        return
    yield from private.find(name, secrets.text_of(name, content))


def _secrets(where: str, text: str) -> Iterator[Shown]:
    for kind, beginning in secrets.find(text):
        yield private.Shown(where=where, kind="secret", text=f"{kind}: {beginning}")


def _is_plain_picture(content: bytes) -> bool:
    """Whether a PNG file holds pixels only, to its end."""
    if not content.startswith(_PNG):
        return False
    place, kind = len(_PNG), b""
    while place + _CHUNK_BYTES <= len(content) and kind != b"IEND":
        length = int.from_bytes(content[place : place + 4], "big")
        kind = content[place + 4 : place + 8]
        if kind not in _CHUNKS:
            return False
        place += length + _CHUNK_BYTES
    return kind == b"IEND" and place == len(content)


def _names_below(root: Path) -> tuple[str, ...]:
    files = (path for path in untrusted.paths_below(root) if path.is_file())
    return tuple(sorted(path.relative_to(root).as_posix() for path in files))

"""The raw records of a study as one file, from which every figure can be recomputed.

It holds the facts that ``results.store.public`` lists, and ``verify`` accepts it. The
same records give the same bytes, as far as the library that compresses them does.
"""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Final

from results.errors import ResultsError
from results.judging.gate import GATE_NAME
from results.store import manifest, public, untrusted
from results.store.study_store import MATCHING_NAME, PLAN_NAME, TRIALS_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from results.store.study_store import Store

MOST_BYTES: Final = 2 * 2**20
_MEGABYTE: Final = 1_000_000
_SOME_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the first that the format knows


def of_studies(
    stores: Iterable[Store], data_url: str
) -> tuple[dict[Path, bytes | str], list[str]]:
    """Returns the records that pages link, and why studies have none, a line each."""
    found: dict[Path, bytes | str] = {}
    missing = []
    for store in stores:
        name = store.root.name
        if data_url:
            found[store.root] = data_url.replace("{study}", name)
            continue
        try:
            content = of_study(store)
        except ResultsError as error:
            missing.append(str(error))
            continue
        if len(content) <= MOST_BYTES:
            found[store.root] = content
            continue
        missing.append(
            f"the records of {name!r} are {len(content) / _MEGABYTE:.1f} MB as a zip,"
            f" at most {MOST_BYTES / _MEGABYTE:.0f} MB go beside a page; put them"
            " elsewhere, and give their address as --data-url"
        )
    return found, missing


def export(stores: Sequence[Store], _metric: object = None) -> bytes:
    """Returns the zip file of one study."""
    return of_study(stores[0])


def of_study(store: Store) -> bytes:
    """Returns the public records of a study as a zip file; raises ResultsError."""
    files = {}
    for name in _names(store):
        try:
            stored = untrusted.read_bytes(store.root / name) or b""
            content = public.content(name, stored)
        except untrusted.DamagedFileError as error:
            raise ResultsError(
                f"no records of {store.root.name!r} are exported: {name} is damaged"
                f" ({error}); restore it from a copy, or remove its trial and measure"
                " it again"
            ) from error
        if content is not None:
            files[name] = content
    # Of an earlier version, without a manifest, it would promise too much.
    if manifest.MANIFEST_NAME in untrusted.names_in(store.root):
        sums = {name: manifest.digest(content) for name, content in files.items()}
        lines = (f"{one}  {name}\n" for name, one in sorted(sums.items()))
        files[manifest.MANIFEST_NAME] = "".join(lines).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{store.root.name}/{name}", _SOME_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return stream.getvalue()


def _names(store: Store) -> Iterator[str]:
    """Yields the path of each file of records in the study."""
    top = untrusted.names_in(store.root)
    yield from (name for name in (PLAN_NAME, GATE_NAME) if name in top)
    for part in (store, store.matching):
        below = TRIALS_NAME if part is store else f"{MATCHING_NAME}/{TRIALS_NAME}"
        for trial_id in part.trial_ids():
            for name in sorted(untrusted.names_in(part.trial_dir(trial_id))):
                if manifest.EVIDENCE.fullmatch(name):
                    yield f"{below}/{trial_id}/{name}"

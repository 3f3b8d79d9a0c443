"""The raw records of a study as one file, from which every figure can be recomputed.

It holds what ``publish`` would copy, after the same search for secrets and names of
this machine, and ``verify`` accepts its folder. The same records give the same bytes,
as far as the library that compresses them does.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reports.exports import publish
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        if data_url:
            found[store.root] = data_url.replace("{study}", store.root.name)
            continue
        content, reason = of_study(store)
        if content is None:
            missing.append(reason)
        else:
            found[store.root] = content
    return found, missing


def of_study(store: Store) -> tuple[bytes | None, str]:
    """Returns the records of a study as a zip file, and "" or why there is none."""
    name = store.root.name
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / name
        found = list(publish.copy_records(store, copy))
        if found:
            first = found[0]
            return None, (
                f"{len(found)} things in the records of {name!r} may be private, such"
                f" as {first.where}: {first.kind}; 'publish {name}' lists them"
            )
        stream = io.BytesIO()
        with zipfile.ZipFile(
            stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9
        ) as file:
            for path in sorted(copy.rglob("*")):
                if path.is_file():
                    entry = zipfile.ZipInfo(
                        f"{name}/{path.relative_to(copy).as_posix()}", _SOME_TIME
                    )
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    file.writestr(entry, untrusted.read_bytes(path) or b"")
    content = stream.getvalue()
    if len(content) > MOST_BYTES:
        return None, (
            f"the records of {name!r} are {len(content) / _MEGABYTE:.1f} MB as a zip,"
            f" at most {MOST_BYTES / _MEGABYTE:.0f} MB go beside a page; put them"
            " elsewhere, and give their address as --data-url"
        )
    return content, ""

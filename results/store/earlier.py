"""Earlier attempts at a trial, which stay in the study beside the one that counts.

A trial is measured again where its generation was interrupted, or where its failure is
retried. What is there then is moved by one rename, whole, to
``earlier/<trial_id>-<k>``: nothing that was measured is lost, however the next attempt
ends. No figure is made of it. ``status`` counts it, and ``verify`` finds there what was
listed and is not measured again yet.
"""

from __future__ import annotations

import errno
import itertools
import re
from typing import TYPE_CHECKING, Final

from results.store import atomic, untrusted

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Before = Callable[[pathlib.Path, pathlib.Path], None]

EARLIER_NAME: Final = "earlier"
_CONCLUDED: Final = {"status.json", "result.json", "turns.jsonl"}
_RANK_FILE: Final = re.compile(r"rank_\d{1,6}\.jsonl")
_OBSERVATION: Final = re.compile(rb'"kind": "(?:step|reading|change|failure)"')


def is_measured(trial_dir: pathlib.Path) -> bool:
    """Whether an attempt observed anything: a step, a number, or its own failure."""
    names = untrusted.names_in(trial_dir)
    if names & _CONCLUDED:
        return True
    for name in filter(_RANK_FILE.fullmatch, names):
        try:
            content = untrusted.read_bytes(trial_dir / name) or b""
        except untrusted.DamagedFileError:
            return True  # what it is, is not for a sweep to decide
        if _OBSERVATION.search(content):
            return True
    return False


def keep(trial_dir: pathlib.Path, before: Before | None = None) -> pathlib.Path:
    """Moves the folder of a trial to those of earlier attempts; returns where it is.

    ``before`` is told from where to where, such as ``Store.list_earlier``.
    """
    place = trial_dir.parent.with_name(EARLIER_NAME)
    if place.is_symlink():  # it leads out of the study
        raise NotADirectoryError(errno.ENOTDIR, f"{EARLIER_NAME} is a symbolic link")
    place.mkdir(exist_ok=True)
    taken = untrusted.names_in(place)
    names = (f"{trial_dir.name}-{number}" for number in itertools.count(1))
    kept = place / next(name for name in names if name not in taken)
    if before is not None:
        before(trial_dir, kept)
    trial_dir.rename(kept)
    atomic.sync(place)
    atomic.sync(trial_dir.parent)
    return kept


def attempts(root: pathlib.Path, trial_id: str = "") -> list[pathlib.Path]:
    """Returns the folders of earlier attempts of a study, or of one of its trials."""
    place = root / EARLIER_NAME
    pattern = re.compile(rf"{re.escape(trial_id) or '.+'}-\d+")
    names = sorted(filter(pattern.fullmatch, untrusted.names_in(place)))
    return [place / name for name in names]

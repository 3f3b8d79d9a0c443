"""Named baselines: studies that changes are judged against, in one file.

``baselines.json`` lies beside the studies and is replaced as a whole, so that a reader
sees either the old file or the new one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

from harness.errors import StudyError
from harness.machine.time_of_day import now_text
from results.errors import ResultsError
from results.store import atomic, untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE_NAME = "baselines.json"
DEFAULT_NAME = "default"
"""The baseline of a gate that names none."""
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """A study with a name.

    Attributes:
      name: Its name as a baseline.
      study: The name or path of the study, as ``find_study`` takes it.
      set_at: RFC 3339, UTC.
      days: Studies of the same code on other days.
    """

    name: str
    study: str
    set_at: str
    days: tuple[str, ...] = ()


def read_baselines(runs_dir: Path) -> dict[str, Baseline]:
    """Returns the baselines by name.

    Raises:
      StudyError: The file cannot be read as one.
      UnavailableRecordError: The file system does not say what it holds.
    """
    path = runs_dir / FILE_NAME
    try:
        text = untrusted.read_text(path)
        if text is None:
            return {}
        data = untrusted.parsed(text)
        if data["version"] != _VERSION:
            raise StudyError(
                f"{str(path)!r} has version {data['version']!r}, this harness reads"
                f" {_VERSION}; use the version that wrote it"
            )
        return {
            str(name): Baseline(
                name=str(name),
                study=str(of["study"]),
                set_at=str(of["set_at"]),
                days=tuple(map(str, of.get("days", ()))),
            )
            for name, of in data["baselines"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, (StudyError, ResultsError)):
            raise
        raise StudyError(
            f"{str(path)!r} is no file of baselines"
            f" ({type(error).__name__}: {error}); remove it, then set them again"
        ) from error


def set_baseline(
    runs_dir: Path, name: str, study: str, days: Sequence[str] = ()
) -> Baseline:
    """Gives a study a name, in place of the study that had it.

    Raises:
      StudyError: The name cannot be one, or the file cannot be read.
    """
    if _NAME.fullmatch(name) is None:
        raise StudyError(
            f"--name {name!r} is no name of a baseline; allowed are up to 100 letters,"
            " digits and . _ + -, starting with a letter or digit"
        )
    found = read_baselines(runs_dir)
    found[name] = Baseline(name=name, study=study, set_at=now_text(), days=tuple(days))
    data = {
        "version": _VERSION,
        "baselines": {
            key: {"study": of.study, "set_at": of.set_at}
            | ({"days": list(of.days)} if of.days else {})
            for key, of in sorted(found.items())
        },
    }
    atomic.write_text(runs_dir / FILE_NAME, json.dumps(data, indent=2) + "\n")
    return found[name]


def get_baseline(runs_dir: Path, name: str) -> Baseline:
    """Returns a baseline by name.

    Raises:
      StudyError: There is none of this name; names those there are.
    """
    found = read_baselines(runs_dir)
    if name in found:
        return found[name]
    known = ", ".join(sorted(found)) or "none"
    raise StudyError(
        f"no baseline is named {name!r} in {str(runs_dir)!r}, which has: {known}; set"
        f" one with 'baseline set STUDY --name {name}'"
    )

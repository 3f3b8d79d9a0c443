"""Ids of records from their content: canonical JSON, then BLAKE2b.

Fields that later versions added are omitted where they have their default, so that
trials keep the ids that they had before.

Canonical JSON has sorted keys, no white space and ASCII only, so equal specs give the
same JSON in every process. ``schema_version`` is omitted: it says how a record is
stored, not what was measured, and an upgraded record keeps its id.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from results.records.measuring import StepSettings

if TYPE_CHECKING:
    from results.records import models

ID_LENGTH = 20
"""Hexadecimal characters of an id: 80 bits, no collision below about 10**12 trials."""

_NOT_IDENTITY = {"schema_version"}
_ADDED = (
    "budget",
    "order",
    "control",
    "allocator",
    "variables",
    "revision",
    "program",
    "plugins",
    *StepSettings.model_fields,
)
_ADDED_OF_PROGRAM = ("counts",)
_NOT_CASE = {"schema_version", "repetition_index", "seed"}


def canonical_json(value: Any) -> str:
    """Returns the canonical JSON of ``value``: sorted keys, compact, ASCII."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: Any) -> str:
    """Returns ``ID_LENGTH`` hexadecimal characters, a digest of ``value``."""
    text = canonical_json(value).encode("ascii")
    return hashlib.blake2b(text, digest_size=ID_LENGTH // 2).hexdigest()


def _content(spec: models.TrialSpec, exclude: set[str]) -> dict[str, Any]:
    fields = spec.model_dump(mode="json", exclude=exclude)
    defaults = type(spec).model_fields
    for name in _ADDED:
        if getattr(spec, name) == defaults[name].get_default(call_default_factory=True):
            del fields[name]
    for name in _ADDED_OF_PROGRAM:
        if spec.program is not None and not getattr(spec.program, name):
            del fields["program"][name]
    return fields


def ids(spec: models.TrialSpec) -> tuple[str, str]:
    """Returns the ids of a trial and of its case, serializing the spec once."""
    content = _content(spec, _NOT_IDENTITY)
    case = {key: value for key, value in content.items() if key not in _NOT_CASE}
    return digest(content), digest(case)


def trial_id(spec: models.TrialSpec) -> str:
    """Returns the id of one trial: the digest of its whole spec."""
    return digest(_content(spec, _NOT_IDENTITY))


def case_id(spec: models.TrialSpec) -> str:
    """Returns the id of a case: the digest of the spec without repetition and seed.

    Trials that share a case id are repetitions of one another.
    """
    return digest(_content(spec, _NOT_CASE))

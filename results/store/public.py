"""What of a study may leave the machine: the fields and files that are listed here.

Numbers may. Text stays where its field is a fact, is masked where it is text of people
or programs, and is left out otherwise. Records in the study stay complete.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from typing import Any, Final

from results.records import schema
from results.records.texts import shared
from results.store import untrusted

# Words, ids, digests, versions and times that the harness or the kernel made.
_FACTS = """
allocator case_id code_digest control cpu_governor cpu_model created_at device
device_sharing ended_at evidence fingerprint first_case_id git_commit glibc_version
gpu_driver gpus group kernel kind loss modes nccl_version nonce order packages paths
phase python_version samples second_case_id slowed_by started_at status
transparent_huge_pages trial_id verdict version workload_version
"""
# Words of people, programs and plugins, and sentences that may quote them.
_TEXTS = """
backend baseline collectives command container counts data detail discard_reason
environment_variables example_unit exception_type failures faults folder headline host
method metric name not_checked notes options plugins preset program_code protocol reason
remarks revision setup study text title unfit unit variables workload worse
"""
# Fields whose keys are names of people, not of fields.
_MAPPINGS = """
environment_variables not_checked options packages plugins program_code remarks
variables
"""
TEXTS: Final = frozenset(_TEXTS.split())
FACTS: Final = frozenset(_FACTS.split()) - TEXTS
MAPPINGS: Final = frozenset(_MAPPINGS.split())
_OF_A_SPEC: Final = "code_digest"
_ABRIDGED: Final = "is_abridged"
# A number, or true or false, in quotes: it is read as such.
_NUMBER: Final = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_QUOTED: Final = re.compile(rf"(?i)\s*(?:{_NUMBER}|true|false|yes|no|on|off|[tfyn])\s*")
_CLOCK: Final = re.compile("[0-9a-f]{16}")
_PNG: Final = b"\x89PNG\r\n\x1a\n"
# What a picture or a film is drawn from; text and times are in other chunks.
_CHUNKS: Final = frozenset(
    b"IHDR PLTE tRNS gAMA sRGB pHYs IDAT IEND acTL fcTL fdAT".split()
)
_CHUNK_BYTES: Final = 12


def content(name: str, stored: bytes) -> bytes | None:
    """Returns what may leave the machine of a file of a study; None if nothing may."""
    if name.endswith(".png"):
        return picture(stored)
    if name.endswith(".jsonl"):
        return b"".join(map(_line, stored.splitlines(keepends=True)))
    record = untrusted.parsed_object(stored)
    public_facts = facts(schema.renamed(pathlib.PurePath(name).stem, record))
    if public_facts == record:
        return stored
    return f"{json.dumps(public_facts, indent=1)}\n".encode()


def record_of(whole: Any) -> Any:
    """Returns a record, which was read whole, as it may leave the machine."""
    stated = whole.model_dump(mode="json", exclude_unset=True)
    kept = facts(stated)
    return whole if kept == stated else type(whole).model_validate(kept)


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """Returns what may leave the machine of a record, or of a line of observations."""
    try:
        return _facts(record)
    except RecursionError as error:
        raise untrusted.DamagedFileError(
            "not a record: lists or objects are nested too deeply"
        ) from error


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: public
        for name, value in record.items()
        if (public := _public(value, name)) is not None or value is None
    }
    if _OF_A_SPEC in record and kept != record:
        kept[_ABRIDGED] = True
    return kept


def picture(stored: bytes) -> bytes | None:
    """Returns what a PNG file is drawn from; None if it is none."""
    if not stored.startswith(_PNG):
        return None
    kept, position, kind = [_PNG], len(_PNG), b""
    while position + _CHUNK_BYTES <= len(stored) and kind != b"IEND":
        length = int.from_bytes(stored[position : position + 4], "big")
        end = position + _CHUNK_BYTES + length
        kind = stored[position + 4 : position + 8]
        kept += [stored[position:end]] if kind in _CHUNKS else []
        position = end
    return b"".join(kept) if kind == b"IEND" and position <= len(stored) else None


def _line(stored: bytes) -> bytes:
    try:
        line = untrusted.parsed(stored)
        # Why a process failed is in the status of its trial.
        public_facts = facts(
            {name: value for name, value in line.items() if name != "reason"}
        )
    except (untrusted.DamagedFileError, AttributeError):
        return b""  # cut by a kill, or no object: nobody reads it
    if public_facts == line:
        return stored
    return f"{json.dumps(public_facts)}\n".encode()


def _public(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, dict) and name in MAPPINGS:
        return {key: _public(member, name) for key, member in value.items()}
    if isinstance(value, dict):
        return _facts(value)
    if not isinstance(value, list) or set(map(type, value)) <= {int, float}:
        return value
    if set(map(type, value)) == {str}:
        # Together: an option and its value may be two words.
        text = _text("\0".join(value), name)
        return None if text is None else text.split("\0")
    return [_public(member, name) for member in value]


def _text(text: str, name: str) -> str | None:
    if name in FACTS:
        return text
    if name == "host" and not _CLOCK.fullmatch(text):  # by a client of others
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return shared(text) if name in TEXTS or _QUOTED.fullmatch(text) else None

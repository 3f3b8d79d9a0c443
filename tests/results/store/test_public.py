"""What of a study may leave the machine is listed, field by field."""

import json
import re
import struct
import zlib
from pathlib import Path

import pytest
import study_files
from study_files import published_file

from results import GateRecord, ResultsError

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "docs" / "schema"
TOKEN = "hf_" + "aB" * 17
LEFT_OUT = {"data_dir", "traceback"}
OF_OWN_LINES = {
    "version"
}  # of NCCL, in a line that only processes of the harness write


def facts(record):
    """Returns what of a record leaves the machine."""
    return json.loads(published_file("env.json", json.dumps(record).encode()))


def texts_of(schema, definitions, name=""):
    """Yields the names of the fields that hold text, by the schema of a record."""
    if "$ref" in schema:
        of = schema["$ref"].rpartition("/")[2]
        # Each record once: its own references are followed when it is taken out.
        if (definition := definitions.pop(of, None)) is not None:
            yield from texts_of(definition, definitions, name)
            if definition.get("type") == "string":
                definitions[of] = definition
    for kind in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(kind, ()):
            yield from texts_of(part, definitions, name)
    if schema.get("type") == "string":
        yield name
    yield from (
        texts_of(schema.get("items", {}) or {}, definitions, name)
        if schema.get("items")
        else ()
    )
    for field, part in schema.get("properties", {}).items():
        yield from texts_of(part, definitions, field)
    if isinstance(of_keys := schema.get("additionalProperties"), dict):
        yield from texts_of(of_keys, definitions, name)


def test_every_text_of_a_record_is_listed_or_left_out():
    """A new field does not leave the machine before somebody lists it here."""
    kinds = ("plan", "env", "status", "result", "client")
    paths = (SCHEMAS / f"{kind}.schema.json" for kind in kinds)
    published = (json.loads(path.read_text(encoding="ascii")) for path in paths)
    found = set()
    for schema in (GateRecord.model_json_schema(), *published):
        definitions = schema.get("$defs", {})
        # Of the protocol of clients, the lines of observations are stored.
        found |= set(texts_of(definitions.get("rank_line", schema), definitions))

    # Nor is there a field that leaves it, and that no record has.
    sources = (path.read_text() for path in (ROOT / "results").rglob("*.py"))
    words = found | {word for text in sources for word in re.findall(r"\w+", text)}
    shown = facts(dict.fromkeys(words, "a word"))
    texts = {name for name, value in shown.items() if isinstance(value, str)}
    words -= {"code_digest"}  # with which what was abridged is marked
    mappings = facts({name: {"a key": "a word"} for name in words})

    assert found - LEFT_OUT == texts - OF_OWN_LINES
    assert {name for name, value in mappings.items() if value} <= texts


@pytest.mark.parametrize(
    ("record", "public_record"),
    [
        # At any depth; numbers stay, and so do names of options.
        (
            {
                "traceback": TOKEN,
                "unknown": TOKEN,
                "dated": "2026-11-30",
                "serial": "555-12-34",
                "quoted": "-1.5e3",
                "also": {"unknown": [TOKEN, 1], "x": 2, "y": [[TOKEN], 3]},
                "options": {"path": "/mnt/team/x", "depth": 3, "name": None},
                "step_time_sec": [0.1, 2],
            },
            {
                "quoted": "-1.5e3",
                "also": {"x": 2, "unknown": [None, 1], "y": [None, 3]},
                "options": {"path": ".../x", "depth": 3, "name": None},
                "step_time_sec": [0.1, 2],
            },
        ),
        # An option and its value may be two words of a command.
        (
            {"command": ["harness", "--hub-token", TOKEN, "--data-dir", "/mnt/x/data"]},
            {"command": ["harness", "--hub-token", "***", "--data-dir", ".../data"]},
        ),
        # The id of a spec is of the whole; nothing is said where nothing was masked.
        (
            {"code_digest": "abc", "variables": {"XLA_FLAGS": "--dump=/mnt/x/y"}},
            {
                "code_digest": "abc",
                "variables": {"XLA_FLAGS": "--dump=.../y"},
                "is_abridged": True,
            },
        ),
    ],
    ids=["unknown fields", "command", "spec"],
)
def test_what_of_a_record_leaves_the_machine(record, public_record):
    assert public_record == facts(record)


def test_lines_of_observations_hold_no_reason_and_nothing_unknown():
    lines = [
        {"kind": "done", "ns": 5},
        {"kind": "failure", "phase": "measure", "reason": TOKEN, "traceback": TOKEN},
        {"kind": "x", "y": TOKEN},
        {"kind": "clock", "host": "gpu-box-7"},
    ]
    stored = "".join(json.dumps(line) + "\n" for line in lines) + f'{{"a": "{TOKEN}'
    content = published_file("rank_0.jsonl", stored.encode())
    done, failure, other, clock = map(json.loads, content.splitlines())

    assert done == lines[0]
    assert failure == {"kind": "failure", "phase": "measure"}
    assert other == {"kind": "x"}
    assert clock["host"] not in {"gpu-box-7", ""}
    assert published_file("rank_0.jsonl", content) == content


def test_a_record_that_is_nested_deeply_is_damaged():
    record = {}
    for _ in range(900):
        record = {"x": record}

    with pytest.raises(ResultsError, match="nested too deeply"):
        facts(record)


def test_a_picture_holds_pixels_only():
    study = study_files.published("sngan")
    drawn = min(study.glob("trials/*/samples_*.png")).read_bytes()
    chunk = b"zTXt" + b"Comment\0\0" + zlib.compress(TOKEN.encode())
    packed = struct.pack(">I", len(chunk) - 4) + chunk
    packed += struct.pack(">I", zlib.crc32(chunk))

    def picture(stored):
        return published_file("samples_1.png", stored)

    assert picture(drawn) == drawn
    assert picture(drawn[:33] + packed + drawn[33:] + TOKEN.encode()) == drawn
    assert picture(drawn[:-20]) is None
    assert picture(TOKEN.encode()) is None

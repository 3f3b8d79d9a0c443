"""Code and documents use the words of ``docs/glossary.md``.

Its last section is the only list of the words that are not used: the checks read it.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
FOLDERS = (
    *("benchmarks", "docs", "harness", "replicator"),
    *("reports", "results", "tests", "workloads"),
)
# The list itself, its tests, and pages that are kept as they were published.
QUOTING = ("docs/glossary.md", "tests/architecture/test_vocabulary.py", "docs/reports/")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def replaced_words() -> dict[str, str]:
    """Returns what the table of the glossary replaces, and by what."""
    section = GLOSSARY.read_text(encoding="utf-8").split("## Words that are not used")[
        1
    ]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if "|" in line
    ]
    return {
        entry.strip(): instead
        for entries, instead in rows[2:]
        for entry in entries.split(",")
    }


WORDS = replaced_words()
IN_TEXT = [entry for entry in WORDS if "_" not in entry]


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """Returns the words of an identifier, in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name))


def better_name(name: str) -> str | None:
    """Says what an identifier should be called, or None if its words are fine."""
    words = words_of(name)
    for entry, instead in WORDS.items():
        if entry.endswith("batch_size"):  # part of the names that are right
            if entry == name.strip("_").lower():
                return instead
            continue
        parts = words_of(entry)
        if any(words[i : i + len(parts)] == parts for i in range(len(words))):
            return instead
    return None


def defined_names(source: str) -> Iterator[str]:
    """Yields the identifiers that a module defines itself, not those that it uses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def phrases_in(text: str) -> list[str]:
    """Returns the replaced words of a text; line breaks and capitals do not count."""
    plain = " ".join(text.lower().split())
    return [
        entry
        for entry in IN_TEXT
        # Hardly any text has it, and looking for words takes much longer.
        if entry in plain and re.search(rf"(?<![\w-]){entry}(?![\w-])", plain)
    ]


def checked_files() -> dict[str, Path]:
    """Returns the files to check, by their path: code, documents and templates."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    names = {path.relative_to(ROOT).as_posix(): path for path in found}
    return {
        name: path
        for name, path in sorted(names.items())
        if path.suffix in (".py", ".md", ".j2", ".toml", "") and path.is_file()
        if not name.startswith(QUOTING)
    }


def test_no_file_uses_a_replaced_word() -> None:
    """In identifiers that it defines, and in text: messages, docstrings, documents."""
    wrong = []
    for name, path in checked_files().items():
        text = path.read_text(encoding="utf-8")
        if name == "CHANGELOG.md":  # released changes stay as they were
            text = text.split("\n## Unreleased\n")[1].split("\n## ")[0]
        found = phrases_in(text)
        if path.suffix == ".py":
            found += [each for each in set(defined_names(text)) if better_name(each)]
        wrong += [f"{name}: {each!r}" for each in found]

    assert [] == wrong


def test_the_check_reads_code_and_documents() -> None:
    """It is not empty by mistake, and files that quote the words exist."""
    assert {
        "README.md",
        "docs/decisions/README.md",
        "harness/cli/main.py",
        "reports/page/templates/page.html.j2",
        "tests/conformance/conformance_cases/misuse.py",
    } <= set(checked_files())
    assert all((ROOT / name).exists() for name in QUOTING)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(batch_size): pass", ["batch_size"]),
        ("self.batch_size = 8", ["batch_size"]),
        ("for ticket in []: pass", ["ticket"]),
        ("try: pass\nexcept OSError as lesson: pass", ["lesson"]),
        ("async def knock(): pass", ["knock"]),
        ("class CommonEndOfData: pass", ["CommonEndOfData"]),
        ("check_start_equal = 1", ["check_start_equal"]),
        ("call(batch_size=8)", []),
        ("other.batch_size", []),
        ("per_replica_batch_size = global_batch_size = 8", []),
        ("placeholder = tower = speed = experiment = step_time_ms = 1", []),
    ],
)
def test_a_replaced_word_is_found_where_it_is_defined(
    source: str, names: list[str]
) -> None:
    """Keywords and attributes of others are theirs, and the field's words are fine."""
    assert names == [name for name in defined_names(source) if better_name(name)]


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("Worker 1 Knocked\n\nat the port", ["knocked"]),
        ("the common\n end of data", ["common end"]),
        ("a legend and a placeholder", []),
    ],
)
def test_a_replaced_word_is_found_in_text(text: str, phrases: list[str]) -> None:
    """Over the ends of lines, and whatever the capitals."""
    assert phrases == phrases_in(text)

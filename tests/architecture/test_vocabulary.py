"""Code and documents use the words of ``docs/glossary.md``.

The last section of the glossary lists the words that are not used, each with what to
write instead. It is the only list: the checks here read it.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

# The list itself, and the tests of the list: they have to write the words. All other
# files of the packages and documents are checked.
QUOTING = ("docs/glossary.md", "tests/architecture/test_vocabulary.py")

SUFFIXES = (".py", ".md", ".j2")
OTHER_FILES = ("Makefile", "pyproject.toml")

# (file, identifier) -> why the word is right there.
ALLOWED_IDENTIFIERS = {
    ("results/store/lock.py", "HOLDER_NAME"): "a lock has a holder: the name of a file",
    ("results/store/lock.py", "_read_holder"): "a lock has a holder",
}

# (file, phrase) -> why the phrase is right there.
ALLOWED_PHRASES: dict[tuple[str, str], str] = {}

BETWEEN = " \0 "
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def banned(heading: str) -> dict[str, str]:
    """Returns what a table of the glossary bans, and what it has instead.

    Args:
      heading: The heading above the table. Its first column has one or more entries
        that are separated by commas, its second one says what to write instead.
    """
    text = GLOSSARY.read_text(encoding="utf-8")
    section = text.split(f"\n### {heading}\n", maxsplit=1)[1].split("\n#", maxsplit=1)[
        0
    ]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if "|" in line
    ]
    return {
        entry.strip("` "): instead
        for entries, instead in rows[2:]
        for entry in entries.split(",")
    }


WORDS = banned("Words of identifiers")
UNITS = banned("Units at the end of identifiers")
NAMES = banned("Whole identifiers")
PHRASES = banned("Phrases in text")


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """Returns the words of an identifier, in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name))


def defined_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the identifiers that a module with these nodes defines itself.

    Names of classes, functions, arguments, variables and attributes that are assigned;
    keywords of calls belong to the function that is called. Names with two underscores
    on both sides are Python's.
    """
    names = set()
    for node in nodes:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.alias) and node.asname:
            names.add(node.asname)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return {n for n in names if not (n.startswith("__") and n.endswith("__"))}


@functools.cache
def better_name(name: str) -> str | None:
    """Says what an identifier should be called, or None if its words are fine."""
    plain = name.strip("_").lower()
    if plain in NAMES:
        return NAMES[plain]
    words = words_of(name)
    for entry, instead in WORDS.items():
        parts = words_of(entry)
        starts = range(len(words) - len(parts) + 1)
        if any(words[i : i + len(parts)] == parts for i in starts):
            return instead
    # A single word is a quantity by itself (a writer of seconds), a flag has no unit.
    has_unit = len(words) > 1 and words[0] not in ("as", "has", "is")
    return UNITS.get(words[-1]) if has_unit else None


def strings_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the strings of a module with these nodes: messages, help, docstrings.

    What an f-string fills in is replaced by a mark.
    """
    within = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            within |= {id(part) for part in parts}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in within
        ):
            yield node.value


def phrases_in(text: str) -> list[str]:
    """Returns the banned phrases of a text; line breaks and capitals do not count."""
    plain = " ".join(text.lower().split())
    return [
        p
        for p in PHRASES
        # Hardly any text has it, and looking for words takes much longer.
        if p in plain and re.search(rf"(?<![\w-]){re.escape(p)}(?![\w-])", plain)
    ]


def nodes_of(source: str) -> list[ast.AST]:
    """Returns all nodes of a module, parents before their children."""
    return list(ast.walk(ast.parse(source)))


def text_of(path: Path, text: str) -> str:
    """Returns what a reader sees of a document; released changes stay as they were."""
    if path.name == "CHANGELOG.md":
        unreleased = text.split("\n## Unreleased\n", maxsplit=1)[1]
        return unreleased.split("\n## ", maxsplit=1)[0]
    return text


def checked_files() -> list[Path]:
    """Returns the files to check: those of the packages and documents."""
    folders = ("benchmarks", "docs", "harness", "replicator")
    folders += ("reports", "results", "tests", "workloads")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    found += [*ROOT.glob("*.md"), *(ROOT / name for name in OTHER_FILES)]
    return sorted(
        path
        for path in found
        if (path.suffix in SUFFIXES or path.name in OTHER_FILES)
        and not path.relative_to(ROOT).as_posix().startswith(QUOTING)
    )


@functools.cache
def banned_entries() -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """Returns what all files have of what is banned; each is read and parsed once.

    Returns:
      File, identifier and the better name of all identifiers; file and phrase.
    """
    identifiers: dict[tuple[str, str], str] = {}
    phrases: set[tuple[str, str]] = set()
    for path in checked_files():
        file = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            nodes = nodes_of(text)
            for name in defined_names(nodes):
                if (better := better_name(name)) is not None:
                    identifiers[file, name] = better
            # Looked through at once; no phrase crosses the mark between two strings.
            seen = BETWEEN.join(strings_of(nodes))
        else:
            seen = text_of(path, text)
        phrases |= {(file, phrase) for phrase in phrases_in(seen)}
    return identifiers, phrases


def test_no_identifier_uses_a_replaced_word() -> None:
    """Every banned identifier has a reason in ALLOWED_IDENTIFIERS, or another name."""
    wrong = [
        f"{path}: {name!r}; the glossary has {better}"
        for (path, name), better in banned_entries()[0].items()
        if (path, name) not in ALLOWED_IDENTIFIERS
    ]

    assert wrong == []


def test_no_text_uses_a_replaced_phrase() -> None:
    """Messages, help, docstrings and documents are in standard English."""
    wrong = [
        f"{path}: {phrase!r}; the glossary has {PHRASES[phrase]}"
        for path, phrase in sorted(banned_entries()[1] - set(ALLOWED_PHRASES))
    ]

    assert wrong == []


def test_the_allow_lists_have_no_stale_entry() -> None:
    """An exception that nothing needs any more is removed."""
    identifiers, phrases = banned_entries()
    stale = [
        *sorted(set(ALLOWED_IDENTIFIERS) - set(identifiers)),
        *sorted(set(ALLOWED_PHRASES) - phrases),
    ]

    assert stale == []


def test_files_that_quote_the_words_exist() -> None:
    """A file that was renamed does not stay left out unnoticed."""
    missing = [name for name in QUOTING if not (ROOT / name).exists()]

    assert missing == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(batch_size): pass", "batch_size"),
        ("self.batch_size = 8", "batch_size"),
        ("class TowerModel: pass", "TowerModel"),
        ("for ticket in []: pass", "ticket"),
        ("def f():\n  n_iters: int = 3", "n_iters"),
        ("step_time_ms = 1", "step_time_ms"),
        ("import numpy as fps", "fps"),
        ("try: pass\nexcept OSError as lesson: pass", "lesson"),
        ("async def knock(): pass", "knock"),
        ("lambda *iters: iters", "iters"),
        ("class CommonEndOfData: pass", "CommonEndOfData"),
        ("check_start_equal = 1", "check_start_equal"),
        ("self._several_steps = 1", "_several_steps"),
    ],
)
def test_a_replaced_word_is_found_wherever_it_is_defined(
    source: str, name: str
) -> None:
    """The search sees every kind of definition."""
    found = [n for n in defined_names(nodes_of(source)) if better_name(n) is not None]

    assert found == [name]


@pytest.mark.parametrize(
    "source",
    [
        "call(batch_size=8)",
        "other.batch_size",
        "per_replica_batch_size = global_batch_size = 8",
        "def seconds(value, is_percent): pass",
        "placeholder = shareholders = homestead = terms = []",
        "def __iter__(self): pass",
        "shard = latency_sec = host = task = iteration = job = world_size = 1",
        "straggler = remainder = sequence_number = heartbeat = predicate = 1",
    ],
)
def test_standard_words_and_words_of_others_are_fine(source: str) -> None:
    """The field's words are allowed; keywords and attributes of others are theirs."""
    found = [n for n in defined_names(nodes_of(source)) if better_name(n) is not None]

    assert found == []


@pytest.mark.parametrize(
    ("source", "phrases"),
    [
        ('raise ValueError("8 does not divide by 3")', ["does not divide by"]),
        ('raise ValueError(f"{a} does not divide " f"by {b}")', ["does not divide by"]),
        ('"""Worker 1 Cannot\n\ngo on."""', ["cannot go on", "go on"]),
        ('help = "no word from the chief"', ["no word from"]),
        ('x = f"{what} is {y} told"', ["told"]),
        ('"""Says which replica is the straggler."""', []),
        ('call("does not", "divide by")', []),
        ('"""A placeholder of shareholders, not a cartoon."""', []),
    ],
)
def test_a_replaced_phrase_is_found_in_strings_and_docstrings(
    source: str, phrases: list[str]
) -> None:
    """The search sees docstrings, strings in parts and f-strings."""
    found = phrases_in(BETWEEN.join(strings_of(nodes_of(source))))

    assert sorted(found) == sorted(phrases)


def test_documents_and_code_are_among_the_checked_files() -> None:
    """The check is not empty by mistake."""
    names = {path.relative_to(ROOT).as_posix() for path in checked_files()}

    assert {
        "README.md",
        "CHANGELOG.md",
        "docs/decisions/README.md",
        "harness/cli/main.py",
        "reports/page/templates/page.html.j2",
        "results/README.md",
        "tests/conformance/conformance_cases/misuse.py",
        "tests/replicator/engine/conftest.py",
        "workloads/d4pg/workload.py",
    } <= names


def test_every_banned_entry_says_what_to_write_instead() -> None:
    """The tables of the glossary are complete, and none of them is empty."""
    tables = (WORDS, UNITS, NAMES, PHRASES)

    assert all(tables)
    assert all(
        entry and instead for table in tables for entry, instead in table.items()
    )

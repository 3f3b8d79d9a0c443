"""What a user reads on the site stays short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MOST_WORDS = 29_900
REFERENCE = "Archive and reference"
INDEXED = ("docs/decisions/0", "docs/archive/")

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
_GENERATED = re.compile(r"<!-- options of .*?<!-- end of options -->", re.DOTALL)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the Python functions that it names."""


Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/", lambda loader, suffix, node: None
)


def words_of(text: str) -> int:
    """Words of prose and of tables, without code and generated tables of options."""
    prose = _INDENTED.sub("", _FENCE.sub("", _GENERATED.sub("", text)))
    return sum(1 for word in prose.split() if re.search(r"\w", word))


def user_pages() -> list[str]:
    """The menu's pages but its last section's, and documents that nobody listed."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    sections = {
        name: pages for entry in settings["nav"] for name, pages in entry.items()
    }
    reference = set(_pages(sections.pop(REFERENCE)))
    listed = list(_pages(sections))
    folders = ("docs", "harness", "replicator", "reports", "results", "studies")
    documents = [
        *ROOT.glob("*.md"),
        *(p for f in (*folders, "workloads") for p in (ROOT / f).rglob("*.md")),
    ]
    names = (path.relative_to(ROOT).as_posix() for path in documents)
    known = {*listed, *reference}
    unlisted = [n for n in names if n not in known and not n.startswith(INDEXED)]
    return [*listed, *sorted(unlisted)]


def _pages(menu: Any) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    entries = menu.values() if isinstance(menu, dict) else menu
    return [page for entry in entries for page in _pages(entry)]


def test_the_pages_of_a_user_are_few_words() -> None:
    """Shorten a page, or move what is history to the archive."""
    words = {page: words_of((ROOT / page).read_text()) for page in user_pages()}

    assert len(words) > 20
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda w: -w[1])


def test_every_document_of_the_archive_is_in_its_index() -> None:
    """Nothing is only found by its path."""
    folder = ROOT / "docs" / "archive"
    index = (folder / "README.md").read_text()
    names = [p.name for p in folder.glob("*.md") if p.name != "README.md"]

    assert names
    assert [] == [name for name in names if f"]({name})" not in index]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A step | 2 |\n| --- | --- |", 3),
        ("one\n```python\nimport replicator\n```\ntwo", 2),
        ("one\n\n    make sweep\n\n- two\n  three", 3),
        ("one\n<!-- options of sweep -->\n| `--file` |\n<!-- end of options -->\n", 1),
    ],
)
def test_words_are_those_that_are_read(text: str, words: int) -> None:
    """Code, lines of tables, and generated tables do not count."""
    assert words == words_of(text)

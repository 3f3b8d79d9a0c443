"""What a file does and refers to, apart from how it is written."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from harness.sources import source_code


def test_a_removed_docstring_changes_nothing() -> None:
    """Nor does one that comes first."""
    with_text = source_code.read('def f():\n    """Says."""\n    return 1\n', "")
    without = source_code.read("def f():\n    return 1  # one\n", "")
    other = source_code.read("def f():\n    return 2\n", "")

    assert with_text.fingerprint == without.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a.b", {"a.b"}),
        ("from a import b, c", {"a", "a.b", "a.c"}),
        ("def f():\n    from a.b import c", {"a.b", "a.b.c"}),
        ("from . import b", {"p.q", "p.q.b"}),
        ("from ..r import b", {"p.r", "p.r.b"}),
        ("COMMAND = ('-m', 'a.b')", {"a.b"}),
        ("TARGET = 'a.b:Class'", {"a.b"}),
        ("say('a.b: not found')", set()),
        ("'a.b'", set()),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", {"b"}),
        ("if typing.TYPE_CHECKING:\n    import a", set()),
    ],
)
def test_references_are_imports_and_names_of_modules(text: str, expected: Any) -> None:
    """Wherever they stand, but for what type checkers only see."""
    assert expected == source_code.read(text, "p.q").references


def test_entries_of_a_catalogue_are_apart() -> None:
    """Each has its own fingerprint; the file's is that of the rest."""
    both = source_code.read(
        "ALL = (BackendInfo(name='a', target='p.a'), BackendInfo(name='b'))", "p"
    )
    one = source_code.read("ALL = (BackendInfo(name='b'),)", "p")
    more = source_code.read("ALL = (BackendInfo(name='b', kind='c'),)", "p")
    b = ("BackendInfo", "b")

    assert {("BackendInfo", "a"), b} == set(both.entries)
    assert both.fingerprint == one.fingerprint == more.fingerprint
    assert both.references == frozenset()
    assert both.entries["BackendInfo", "a"].references == {"p.a"}
    assert both.entries[b].fingerprint == one.entries[b].fingerprint
    assert one.entries[b].fingerprint != more.entries[b].fingerprint


def test_garbage_is_collected_again_after_a_file_was_read() -> None:
    """Also after one that is no Python."""
    with pytest.raises(SyntaxError):
        source_code.read("def f(:", "p")

    assert gc.isenabled()

"""Extracts what a source file does and refers to, ignoring how it is written.

Comments, docstrings, formatting and code for type checkers only are ignored.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import gc
import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENTRY_CLASSES: Final = {
    "BackendInfo": "BackendInfo",
    "PeerInfo": "BackendInfo",
    "WorkloadInfo": "WorkloadInfo",
}
"""A call of one of these classes with a ``name`` is a catalogue entry, of this kind."""

# Whether a name is read, written or deleted follows from its position.
_CONTEXTS = (ast.Load, ast.Store, ast.Del)
_TARGET = re.compile(r"([a-z_]\w*(?:\.\w+)+)(?::\w+)?")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """What one file, or one entry of a catalogue, does and refers to."""

    fingerprint: str  # Equal for files that differ only in how they are written.
    # Dotted names that it imports anywhere, those of the attributes that it reads of a
    # module, and those that it contains as a string, such as ``package.module:Class``
    # or what ``python -m`` is given. ``package.*`` where a module is used other than by
    # its attributes.
    references: frozenset[str]
    # Entries of a catalogue, by class and name; not part of the rest.
    entries: Mapping[tuple[str, str], Code]


@functools.cache
def read(text: str, package: str) -> Code:
    """Reads the code of one file."""
    with _no_garbage_collection():
        return _read(ast.parse(text), package)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables the garbage collector, which makes parsing several times faster."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _read(tree: ast.AST, package: str) -> Code:
    reader = _Reader(package)
    reader.node(tree)
    content = "\0".join(reader.parts).encode("utf-8", "backslashreplace")
    return Code(
        fingerprint=hashlib.blake2b(content, digest_size=16).hexdigest(),
        references=frozenset(reader.references),
        entries=reader.entries,
    )


class _Reader:
    """Walks a syntax tree once.

    ``ast.dump`` of a cleaned copy would give the same result more slowly.
    """

    def __init__(self, package: str) -> None:
        self.parts: list[str] = []
        self.references: set[str] = set()
        self.entries: dict[tuple[str, str], Code] = {}
        self._package = package
        self._imported: dict[str, str] = {}  # dotted names by the names they have here
        self._bases: set[int] = set()  # names of which an attribute is read
        self._parameters: list[str] = []  # of the functions around, which hide imports

    def node(self, node: ast.AST) -> None:
        self.parts.append(type(node).__name__)
        if isinstance(node, ast.Constant):
            self._constant(node.value)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, (ast.Attribute, ast.Name)):
            self._use(node)
        num_outer = len(self._parameters)
        if isinstance(arguments := getattr(node, "args", None), ast.arguments):
            self._parameters += [
                each.arg for each in ast.walk(arguments) if isinstance(each, ast.arg)
            ]
        for name in node._fields:
            value = getattr(node, name, None)
            kind = type(value)
            if isinstance(value, list):
                self.parts.append("[")
                self._items(value)
                self.parts.append("]")
            elif kind is str or value is None:
                self.parts.append(repr(value))
            elif kind not in _CONTEXTS:
                self._item(value)
        del self._parameters[num_outer:]

    def _items(self, items: Sequence[ast.AST]) -> None:
        for item in items:
            kind = type(item)
            if kind is ast.Expr and _is_text(item):
                continue  # a docstring
            if isinstance(item, ast.If) and _is_for_type_checkers(item.test):
                self._items(item.orelse)
            elif kind is ast.Call and (entry := _entry_name(item)):
                self.entries[entry] = _read(item, self._package)
            else:
                self._item(item)

    def _item(self, item: object) -> None:
        if isinstance(item, ast.AST):
            self.node(item)
        else:
            self.parts.append(repr(item))

    def _constant(self, value: object) -> None:
        self.parts.append(repr(value))
        if isinstance(value, str) and (target := _TARGET.fullmatch(value)):
            self.references.add(target[1])

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            self.references |= {alias.name for alias in node.names}
            for alias in node.names:
                first = alias.name.partition(".")[0]
                self._imported[alias.asname or first] = (
                    alias.name if alias.asname else first
                )
            return
        base = node.module or ""
        if node.level:
            parents = self._package.split(".")
            kept = parents[: len(parents) - node.level + 1]
            base = ".".join([*kept, base]) if base else ".".join(kept)
        self.references.add(base)
        for alias in node.names:
            self._imported[alias.asname or alias.name] = f"{base}.{alias.name}"
            self.references.add(f"{base}.{alias.name}")

    def _use(self, node: ast.Attribute | ast.Name) -> None:
        """Notes which attribute of an imported name is read, or that all may be."""
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and (
                named := self._import_of(node.value)
            ):
                self.references.add(f"{named}.{node.attr}")
                self._bases.add(id(node.value))
        elif id(node) not in self._bases and (named := self._import_of(node)):
            self.references.add(f"{named}.*")

    def _import_of(self, node: ast.Name) -> str | None:
        """Returns the dotted name of what a name stands for, if it was imported."""
        return None if node.id in self._parameters else self._imported.get(node.id)


def _is_text(statement: ast.AST) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_for_type_checkers(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _entry_name(call: ast.AST) -> tuple[str, str] | None:
    assert isinstance(call, ast.Call)
    name = getattr(call.func, "id", "")
    if name not in ENTRY_CLASSES:
        return None
    for keyword in call.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return ENTRY_CLASSES[name], str(keyword.value.value)
    return None

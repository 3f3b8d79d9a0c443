"""What is known of a collective is in its own class."""

import ast
import importlib
from pathlib import Path

from replicator import collectives
from replicator.collectives.kind import CollectiveKind, questions

FOLDER = Path(collectives.__file__).parent
PRODUCT = FOLDER.parent
KINDS = {
    value
    for path in FOLDER.glob("*.py")
    for value in vars(
        importlib.import_module(f"replicator.collectives.{path.stem}")
    ).values()
    if isinstance(value, type)
    and issubclass(value, CollectiveKind)
    and all(hasattr(value, question) for question in questions(value))
    and not value.__abstractmethods__
}
NAMES = {kind.name for kind in KINDS}


def compared(tree):
    """Texts by which code chooses: in comparisons, keys of tables, and cases."""
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        for part in parts:
            for leaf in ast.walk(part) if part is not None else ():
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    yield leaf.value


def test_kinds_have_names_of_their_own():
    assert len(NAMES) == len(KINDS) >= 7


def test_nobody_compares_the_name_of_a_collective():
    """Whoever did would take a new one for one of those that it knows."""
    found = {
        (str(path.relative_to(PRODUCT)), text)
        for path in PRODUCT.rglob("*.py")
        for text in compared(ast.parse(path.read_text(encoding="utf-8")))
        if text in NAMES
    }

    assert not found

"""A launcher is known in its own file."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "harness"
CATALOG = HARNESS / "launch" / "launchers.py"
FILES = sorted(
    path
    for path in HARNESS.glob("launch/*.py")
    if "\nLAUNCHER = " in path.read_text(encoding="utf-8")
)
OF_ENGINES = {
    path
    for path in HARNESS.glob("launch/*.py")
    if path.stem.partition("_")[0] in {file.stem for file in FILES}
}
# Records in what kind of container a process is, whoever started it.
CONTAINERS = HARNESS / "machine" / "environment.py"
# Of schedulers that have a launcher, and of those that may get one.
OF_AN_ENGINE = re.compile(r"(SLURM|RAY|OMPI|PMIX?|LSB|PBS|FLUX|KUBERNETES)_\w+")


def strings_of(path):
    """Yields the strings of a module that are no documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documents:
            yield node.value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_outside_of_its_file_compares_a_launcher(file):
    """Its name stands nowhere else, whatever would be done with it."""
    found = [
        str(path.relative_to(ROOT))
        for path in HARNESS.rglob("*.py")
        if path not in {CATALOG, CONTAINERS, file}
        if file.stem in strings_of(path)
    ]

    assert file.stem in strings_of(CATALOG)
    assert [] == found


def test_nothing_outside_of_the_files_reads_a_variable_of_an_engine():
    """What a process has to know comes from the launcher; a client has none."""
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in HARNESS.rglob("*.py")
        if path not in OF_ENGINES and HARNESS / "client" not in path.parents
        for text in strings_of(path)
        if OF_AN_ENGINE.fullmatch(text)
    ]

    assert [] == found

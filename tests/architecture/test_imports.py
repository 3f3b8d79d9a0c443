"""What must not import TensorFlow does not; its private names are in one folder.

The import contracts of ``pyproject.toml`` say which package may import which.
"""

import ast
import graphlib
import json
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "replicator", "reports", "results", "workloads")
HEAVY = {"tensorflow", "keras", "tensorflow_datasets", "jax", "torch"}
# Beside packages that list their names; users copy the client.
PUBLIC = {"workloads", "harness.client.scaling_client"}
MOST_INTERNAL = 29


def names_of(pattern, packages=PACKAGES):
    """The modules whose files are named so."""
    paths = [path for each in packages for path in (ROOT / each).rglob(pattern)]
    names = (".".join(p.relative_to(ROOT).with_suffix("").parts) for p in paths)
    return {name.removesuffix(".__init__") for name in names}


LIGHT = sorted(
    name
    for name in names_of("*.py", ("harness", "results", "reports"))
    if not name.endswith("__main__")
)
LIGHT.append("workloads.metrics.quality")


@pytest.mark.parametrize(
    ("statement", "left_out"),
    [
        # Not one module does, the worker included until it runs a trial; scores are
        # functions of arrays.
        pytest.param(f"import {', '.join(LIGHT)}", HEAVY, id="the parent"),
        # The planner reads them.
        pytest.param(
            "import replicator.catalog, workloads\n"
            "try: workloads.WORKLOADS['resnet50'].check_data('no_such_data')\n"
            "except ValueError: pass",
            HEAVY - {"tensorflow_datasets"},
            id="the catalogues",
        ),
        # Only click and the standard library stand between a user and the help.
        pytest.param(
            "from harness import main",
            HEAVY | {"numpy", "pandas", "pydantic", "rich", "matplotlib", "psutil"},
            id="the help",
        ),
    ],
)
def test_nothing_slow_is_imported_by(statement, left_out):
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    imported = {name.split(".")[0] for name in json.loads(done.stdout)}

    assert imported.isdisjoint(left_out)


def test_private_names_of_tensorflow_are_in_one_folder():
    """What a new TensorFlow may break is found in ``replicator/_tf/`` only."""
    private = re.compile(r"^\s*(?:from|import) (tensorflow\.|keras\.src)", re.MULTILINE)
    paths = [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
    users = {p for p in paths if private.search(p.read_text(encoding="utf-8"))}

    assert users
    assert set() == {p for p in users if ROOT / "replicator" / "_tf" not in p.parents}


def test_what_notices_a_private_name_that_breaks_exists():
    """The test that a function of ``replicator/_tf/`` names in brackets."""
    folder = ROOT / "replicator" / "_tf"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    named = set(re.findall(r"\((test_\w+)\)", text))

    assert named
    assert set() == named - {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


def test_no_import_is_in_a_circle():
    """Nor is one hidden within a function."""
    graph = grimp.build_graph(
        *PACKAGES, exclude_type_checking_imports=True, cache_dir=None
    )
    modules = {name for name in graph.modules if not graph.find_children(name)}
    imported = {
        name: graph.find_modules_directly_imported_by(name) & modules
        for name in modules
    }

    graphlib.TopologicalSorter(imported).prepare()  # raises where there is one


def _names_imported(path):
    """The modules that a file imports, and the names that it takes from others."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_tests_enter_through_public_names():
    """So that who moves a file mends few tests. A stub lists what a package offers."""
    modules = names_of("*.py")
    imported = {
        name if name in modules else name.rpartition(".")[0]
        for path in (ROOT / "tests").rglob("*.py")
        for name in _names_imported(path)
    }
    internal = (imported & modules) - names_of("*.pyi") - PUBLIC

    assert len(internal) <= MOST_INTERNAL, sorted(internal)

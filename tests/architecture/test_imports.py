"""What must not import TensorFlow does not, and no module imports itself by others."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"tensorflow", "keras", "tensorflow_datasets", "jax", "torch"}


def imported_by(statement):
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def modules_of(package, leave_out=()):
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in leave_out and parts[-1] != "__main__":
            names.append(name)
    return names


@pytest.mark.parametrize("package", ["harness", "results", "reports"])
def test_the_parent_never_imports_tensorflow(package):
    """Not one module does, the worker included until it runs a trial."""
    imported = imported_by(f"import {', '.join(modules_of(package))}")

    assert imported.isdisjoint(HEAVY)


def test_the_catalogues_import_no_tensorflow():
    """The planner reads them."""
    imported = imported_by(
        "import replicator.catalog, workloads.catalog\n"
        "try: workloads.catalog.check_data('resnet50', 'no_such_data')\n"
        "except ValueError: pass"
    )

    assert imported.isdisjoint(HEAVY - {"tensorflow_datasets"})


def test_help_imports_next_to_nothing():
    """Only click and the standard library stand between a user and the help."""
    imported = imported_by("import harness.cli.main")

    assert imported.isdisjoint(
        HEAVY | {"numpy", "pandas", "pydantic", "rich", "matplotlib", "psutil"}
    )


def test_the_arithmetic_of_metrics_imports_no_tensorflow():
    """Scores are functions of arrays; the extractors alone need a network."""
    extractors = ("digits", "digits_training", "inception")
    names = [
        name
        for name in modules_of("workloads/metrics")
        if name.rpartition(".")[2] not in extractors
    ]
    imported = imported_by(f"import {', '.join(names)}")

    assert imported.isdisjoint(HEAVY)


def test_private_names_of_tensorflow_are_in_one_folder():
    """What a new TensorFlow may break is found in ``replicator/_tf/`` only."""
    private = re.compile(r"^\s*(?:from|import) (tensorflow\.|keras\.src)", re.MULTILINE)
    packages = ("replicator", "workloads", "harness", "results", "reports")
    paths = [p for package in packages for p in (ROOT / package).rglob("*.py")]
    users = {p for p in paths if private.search(p.read_text(encoding="utf-8"))}

    assert users
    assert set() == {p for p in users if ROOT / "replicator" / "_tf" not in p.parents}


def test_what_notices_a_private_name_that_breaks_exists():
    """The test that a function of ``replicator/_tf/`` names in brackets."""
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "replicator" / "_tf").rglob("*.py")
    )
    named = set(re.findall(r"\((test_\w+)\)", text))

    assert named
    assert set() == named - {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("package", ["replicator", "harness", "results", "reports"])
def test_no_two_classes_of_a_package_share_a_name(package):
    """A reader of a traceback or of a docstring knows which one is meant."""
    places = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


PACKAGES = ("harness", "replicator", "reports", "results", "workloads")


def imports_of(package):
    """The modules of a package that each of its modules imports when it runs."""
    paths = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name != "__init__.py":
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts)] = path
    return {
        name: (imported_in(ast.parse(path.read_text("utf-8")).body) & paths.keys())
        - {name}
        for name, path in paths.items()
    }


def imported_in(body):
    names = set()
    for node in body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= full | {node.module}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            names |= imported_in(node.orelse)
        else:
            parts = [
                getattr(node, name, []) for name in ("body", "orelse", "finalbody")
            ]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            names |= {name for part in parts for name in imported_in(part)}
    return names


def circles(graph):
    """Returns the groups of modules that reach one another (Tarjan 1972)."""
    order = {}
    lowest = {}
    stack = []
    found = set()

    def visit(name):
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.add(frozenset(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_no_import_of_a_package_is_in_a_circle():
    """Nor is one hidden within a function."""
    assert set() == {circle for of in PACKAGES for circle in circles(imports_of(of))}

"""No module imports itself by way of others of its package."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "replicator", "reports", "results", "workloads")


def imports_of(package):
    """Returns the modules of a package that each of its modules imports when it runs.

    Imports for type checkers are none. Those within functions count: they hide a
    circle, and do not remove it. Packages are left out: each import from one names it.
    """
    paths = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name != "__init__.py":
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts)] = path
    return {
        name: (imported(ast.parse(path.read_text("utf-8")).body) & paths.keys())
        - {name}
        for name, path in paths.items()
    }


def imported(body):
    """Returns what statements import, and those within them."""
    names = set()
    for node in body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= full | {node.module}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            names |= imported(node.orelse)
        else:
            parts = [
                getattr(node, name, []) for name in ("body", "orelse", "finalbody")
            ]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            names |= {name for part in parts for name in imported(part)}
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


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, {frozenset("abc")}),
        (
            {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}},
            {frozenset("ab"), frozenset("cd")},
        ),
    ],
)
def test_a_circle_is_found(graph, expected):
    assert expected == circles(graph)

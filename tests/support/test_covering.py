"""Cases that cover a product of parameters, and what the full run adds."""

import ast
import itertools
from pathlib import Path

import covering
import pytest

TESTS = Path(__file__).resolve().parents[1]
PRODUCT = [
    {"backend": backend, "count": count, "type": kind}
    for backend, count, kind in itertools.product("abcd", "124", "xyz")
]
MARKS = {"full", "covering"}

pytest_plugins = ("pytester",)


def combinations_of(cases, strength):
    """All combinations of so many values that occur in cases."""
    return {
        combination
        for case in cases
        for combination in itertools.combinations(sorted(case.items()), strength)
    }


@pytest.mark.parametrize(("strength", "num_at_most"), [(1, 4), (2, 16), (3, 36)])
def test_every_combination_of_the_product_is_covered(strength, num_at_most):
    """By few cases: 4 have every value of 4 x 3 x 3, and a dozen every pair."""
    chosen = [PRODUCT[i] for i in covering.covering(PRODUCT, strength)]

    assert combinations_of(PRODUCT, strength) == combinations_of(chosen, strength)
    assert len(chosen) <= num_at_most


def test_of_a_product_with_holes_what_occurs_is_covered():
    """A backend that runs at one count only is there with that count."""
    cases = [case for case in PRODUCT if case["backend"] != "a" or case["count"] == "4"]
    chosen = [cases[i] for i in covering.covering(cases, 2)]

    assert combinations_of(cases, 2) == combinations_of(chosen, 2)


def test_the_choice_is_always_the_same():
    """Several processes must leave out the same tests."""
    assert covering.covering(PRODUCT, 2) == covering.covering(list(PRODUCT), 2)
    assert [] == covering.covering([], 2)


def test_of_equal_cases_a_preferred_one_is_chosen():
    """One that is quick covers the rest."""
    chosen = [PRODUCT[i] for i in covering.covering(PRODUCT, 1, {"count": {"4"}})]

    assert ["4", "1", "2", "4"] == [case["count"] for case in chosen]


EXAMPLE = """
import pytest

@pytest.mark.covering(prefer={"count": [4]})
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kind", [{"a": 1}, "b"])
def test_product(kind, count):
    pass

@pytest.mark.full
def test_rest():
    pass

def test_always():
    pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs the example with this project's settings of tests, in this process."""
    pytester.makepyfile(test_example=EXAMPLE)
    pytester.makeini("[pytest]\nmarkers =\n  covering(prefer): p\n  full: f\n")
    pytester.makeconftest(
        "import covering\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    covering.leave_out(config, items)\n"
    )
    monkeypatch.delenv(covering.VARIABLE, raising=False)
    return lambda *args: pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)


def test_rests_are_left_to_the_full_run(run, monkeypatch):
    """3 of 6 cases have every value; the whole product runs with the variable."""
    run().assert_outcomes(passed=3 + 1, deselected=3 + 1)

    monkeypatch.setenv(covering.VARIABLE, "1")

    run().assert_outcomes(passed=6 + 1 + 1)


def test_a_test_that_is_named_runs_always(run):
    """A case that is requested is run."""
    run("test_example.py::test_rest").assert_outcomes(passed=1)
    run("test_example.py::test_product").assert_outcomes(passed=6)


def marked_functions():
    """File, name and docstring of every test with a mark of the full run."""
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            names = {
                name.attr
                for decorator in node.decorator_list
                for name in ast.walk(decorator)
                if isinstance(name, ast.Attribute)
            }
            if names & MARKS:
                where = f"{path.relative_to(TESTS)}::{node.name}"
                yield where, ast.get_docstring(node) or ""


def test_every_such_test_says_what_is_left_to_the_full_run():
    """In its docstring, for who reads that it passed."""
    found = dict(marked_functions())

    assert len(found) > 3
    assert [] == [name for name, text in found.items() if "full run" not in text]

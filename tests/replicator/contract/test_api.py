"""The public names of the package, and what importing it costs."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import replicator
from replicator import catalog, errors


def test_public_names_are_sorted_and_all_there():
    assert sorted(replicator.__all__) == list(replicator.__all__)
    assert list(replicator.__all__) == dir(replicator)


@pytest.mark.parametrize("name", replicator.__all__)
def test_every_public_name_is_documented_and_listed_where_it_is_defined(name):
    """It has a docstring, and the stub imports it from its own module."""
    thing = getattr(replicator, name)
    stub = Path(replicator.__file__).with_suffix(".pyi").read_text()
    module = thing.__module__.removeprefix("replicator")
    pattern = rf"from {re.escape(module)} import (\(\n[^)]*\b|.*\b){name} as {name}\b"

    assert inspect.getdoc(thing)
    assert re.search(pattern, stub)


@pytest.mark.parametrize(
    "kind", [n for n in replicator.__all__ if inspect.isclass(getattr(replicator, n))]
)
def test_every_public_method_is_documented(kind):
    """Also where a subclass overrides it; what Keras makes is Keras' to document."""
    missing = [
        name
        for name, member in inspect.getmembers(getattr(replicator, kind))
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and getattr(member, "fget", member).__module__.startswith("replicator")
        and not inspect.getdoc(member)
    ]

    assert [] == missing


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No replicator attribute tower"):
        _ = replicator.tower


def test_planning_tools_load_no_tensorflow():
    """Importing the package and its catalogue is free; the first name is not."""
    code = (
        "import sys, replicator, replicator.catalog, replicator.errors\n"
        "heavy = {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert dir(replicator) == list(replicator.__all__)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )

    assert "" == done.stderr
    assert 0 == done.returncode


@pytest.mark.parametrize("name", catalog.BACKENDS)
def test_every_backend_of_the_catalogue_exists(name):
    """Its target is a replicator class, and its name is its key."""
    info = catalog.BACKENDS[name]

    assert name == info.name
    assert issubclass(info.load(), replicator.Replicator)
    assert info == catalog.entry_of(type("OfAUser", (info.load(),), {}))


def test_a_class_outside_of_the_catalogue_has_no_entry():
    with pytest.raises(LookupError, match=r"builtins:object is not a backend of the"):
        catalog.entry_of(object)


def test_the_tree_of_errors_in_the_documentation_is_complete():
    """Each derives from ReplicatorError, or is a warning, and the docstring has it."""
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    ]

    bases = errors.ReplicatorError, UserWarning
    assert all(issubclass(kind, bases) for kind in kinds)
    assert [] == [k.__name__ for k in kinds if k.__name__ not in errors.__doc__]

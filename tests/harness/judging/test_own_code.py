"""Two revisions that would run the same code, and what says so."""

import json

import pytest

from harness.errors import RevisionError
from harness.judging import own_code


@pytest.fixture
def trees(tmp_path):
    """The user's working tree and a revision of it, alike."""
    for name in ("tree", "base"):
        (tmp_path / name / "src" / "own").mkdir(parents=True)
        (tmp_path / name / "train.py").touch()
    return tmp_path / "tree", tmp_path / "base"


def install(monkeypatch, folder, source):
    """Makes a folder of packages in which one is installed from a source tree."""
    facts = folder / "own-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (facts / "direct_url.json").write_text(json.dumps(url))
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.processes
@pytest.mark.parametrize("command", ["python3 train.py {replicas}", "env A=1 python3"])
def test_a_package_of_the_working_tree_is_refused(
    trees, tmp_path, monkeypatch, command
):
    """As pip install -e leaves it; the other side may have installed it as well."""
    tree, base = trees
    install(monkeypatch, tmp_path / "site", tree)

    message = r"Python of base has the package 'own' from '.*/tree/src', so both sides"
    with pytest.raises(RevisionError, match=message):
        own_code.check_imports(command, base, base, "base", [tree])
    own_code.check_imports(command, tree, tree, "tree", [base])


@pytest.mark.processes
def test_a_path_to_the_working_tree_is_refused(trees, monkeypatch):
    """Unless the revision has its own there, and finds that first."""
    tree, base = trees
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))

    with pytest.raises(
        RevisionError, match=r"Python of base imports from '.*/tree/src'"
    ):
        own_code.check_imports("python3 train.py", base, base, "base", [tree])
    own_code.check_imports("python3 -m own", base / "src", base, "base", [tree])
    monkeypatch.setenv("PYTHONPATH", str(tree))
    own_code.check_imports("python3 train.py", base, base, "base", [tree])


@pytest.mark.processes
def test_the_mark_of_an_import_hook_is_no_path(trees, monkeypatch):
    """As an editable installation leaves it in ``sys.path``."""
    tree, base = trees
    mark = "__editable__.own-1.0.finder.__path_hook__"
    monkeypatch.setenv("PYTHONPATH", str(tree / mark))

    own_code.check_imports("python3 train.py", base, base, "base", [tree])


def test_another_program_is_not_asked(trees):
    """Nor one that is not there."""
    tree, base = trees
    for command in ("sh -c true", "no-such-program"):
        own_code.check_imports(command, base, base, "base", [tree])


def test_what_starts_the_program_has_to_be_there(tmp_path):
    """An ignored build, or an environment in the working tree, is in no checkout."""
    message = r"base has no '\.venv/bin/python', which --command starts: git does not"
    with pytest.raises(RevisionError, match=message):
        own_code.check_start(".venv/bin/python a.py", tmp_path, "base")
    for command in ("python a.py", "/bin/sh a", "./a{seed}"):
        own_code.check_start(command, tmp_path, "base")

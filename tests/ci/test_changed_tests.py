"""``make test-changed`` runs the tests that a change is most likely to break."""

import runpy
import subprocess

import pytest
from pipelines import ROOT

OF_ROOM = ["tests/package/room/test_part.py", "tests/package/test_whole.py"]
tool = runpy.run_path(str(ROOT / ".ci" / "changed_tests.py"))


@pytest.fixture
def tree(tmp_path):
    """A checkout with two packages and their tests."""
    for name, text in {
        "package/room/part.py": "x = 1\n",
        "tests/package/room/test_part.py": "",
        "tests/package/test_whole.py": "def test():\n    import package.room.part\n",
        "tests/docs/test_links.py": "",
        "tests/other/test_imports.py": "from package.room import part\n",
        "tests/other/test_package.py": "import package\n",
        "README.md": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def git(folder, *words):
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(("git", *who, *words), cwd=folder, check=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["package/room/part.py"], ["tests/other/test_imports.py", *OF_ROOM]),
        (["package/attic/gone.py"], OF_ROOM),
        (["README.md"], ["tests/docs/test_links.py"]),
        (["tests/other/test_package.py"], ["tests/other/test_package.py"]),
        (["tests/package/room/conftest.py"], ["tests/package/room/test_part.py"]),
        (["tests/support/helper.py", "Makefile"], []),
    ],
)
def test_a_path_has_its_tests(tree, changed, expected):
    assert expected == [str(path) for path in tool["chosen_tests"](changed, tree)]


def test_a_change_has_commits_edits_removals_and_new_files(tree):
    git(tree, "checkout", "--quiet", "-b", "work")
    (tree / "package/room/part.py").unlink()
    git(tree, "commit", "--quiet", "-am", "second")
    (tree / "README.md").write_text("edited")
    (tree / "new.py").write_text("")

    expected = ["README.md", "new.py", "package/room/part.py"]
    assert expected == tool["changed"](None, tree)
    assert ["README.md", "new.py"] == tool["changed"]("HEAD", tree)

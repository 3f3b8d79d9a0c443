"""The code digest covers what can change numbers; two codes never mix."""

import ast
import gc
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import PlanError
from harness.sources import code_digest
from harness.sources.code_digest import DISTRIBUTIONS, MEASURED, CodeWatch, SourceTree

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = dict.fromkeys(DISTRIBUTIONS, "1.0")
# Read the command line, plan, judge, store and show.
OTHER_ROOMS = {
    *("__main__.py", "cli", "conformance.py", "doctor", "judging"),
    *("planning", "sources"),
}


def digest_of(root, **changes):
    code_digest.read_once.cache_clear()
    tree = SourceTree(**{"revision": "r", "root": root, "versions": VERSIONS} | changes)
    return code_digest.trial_digest("resnet50", "in_graph", tree)


@pytest.fixture
def tree(tmp_path):
    for name in (
        "harness/run/trial_tree.py",
        "harness/cli/main.py",
        "replicator/engine/link.py",
        "results/store.py",
        "workloads/peers/jax/requirements.lock",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("a = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("harness/run/trial_tree.py", True),
        ("replicator/engine/link.py", True),
        ("replicator/engine/new.py", True),
        ("workloads/peers/jax/requirements.lock", True),
        ("workloads/README.md", False),
        ("harness/cli/main.py", False),
        ("results/store.py", False),
    ],
)
def test_a_line_of_what_is_measured_counts(tree, name, counts):
    """A study is not lost because a table has another column."""
    before = digest_of(tree)
    (tree / name).write_text("a = 2\n")

    assert (digest_of(tree) != before) is counts


def test_a_file_that_moves_counts_and_so_do_versions(tree):
    before = digest_of(tree)
    file = tree / "replicator" / "engine" / "link.py"
    file.rename(file.with_name("linker.py"))

    newer = {"versions": {**VERSIONS, "numpy": "2.0"}}
    assert 3 == len({before, digest_of(tree), digest_of(tree, **newer)})


def test_every_room_of_the_harness_counts_or_does_not():
    """A new one is put on one of the two sides."""
    rooms = {path.parent for path in (ROOT / "harness").glob("*/*.py")}
    names = {path.name for path in (*rooms, *(ROOT / "harness").glob("*.py"))}
    measured = {name.partition("/")[2] for name in MEASURED if "/" in name}

    assert names == measured | OTHER_ROOMS
    assert not measured & OTHER_ROOMS


@pytest.mark.parametrize("package", ["harness", "replicator", "workloads"])
def test_comments_docstrings_and_formatting_change_nothing(tmp_path, package):
    before = code_digest.read(ROOT)
    for name in before:
        if not name.startswith(package) or not name.endswith(".py"):
            continue
        module = ast.parse((ROOT / name).read_text())
        for node in ast.walk(module):
            body = getattr(node, "body", None)
            if isinstance(body, list) and ast.get_docstring(_with_docs(node)):
                body[0] = ast.parse("'another docstring'").body[0]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# A comment.\n{ast.unparse(module)}\n")
    after = code_digest.read(tmp_path)

    assert after == {name: before[name] for name in after}
    assert len(after) > 40


def _with_docs(node):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return node if isinstance(node, kinds) else ast.Module(body=[], type_ignores=[])


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('def f():\n    """Says."""\n    return 1', "def f(): return 1  # one", True),
        ("if TYPE_CHECKING:\n    import a", "", True),
        ("def f(): return 1", "def f(): return 2", False),
        ("f({**a})", "f({None: a})", False),
        ("a = 1", "a = True", False),
        ("a = b", "a = 'b'", False),
        ("import a", "import a as b", False),
        ("a = [b, c]", "a = [b], c", False),
        ("def f():\n    global a\n    a = 1", "def f():\n    a = 1", False),
    ],
)
def test_a_file_counts_by_what_it_does(tree, one, other, is_same):
    file = tree / "replicator" / "engine" / "link.py"
    digests = set()
    for text in (one, other):
        file.write_text(text)
        digests.add(digest_of(tree))

    assert (1 == len(digests)) is is_same
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda path: path.write_text("def f(:\n"), "invalid syntax.*; fix the file"),
        (lambda path: path.write_bytes(b"x = '\xff'\n"), "can't decode byte.*; fix"),
        (lambda path: path.unlink() or path.symlink_to("no"), "No such file.*; make"),
        (lambda path: path.unlink() or path.mkdir(), ""),
    ],
)
def test_code_that_cannot_be_read_is_named(tree, change, what):
    change(tree / "harness" / "run" / "trial_tree.py")

    if not what:
        assert digest_of(tree)  # a folder is no file
        return
    with pytest.raises(
        PlanError, match=rf"cannot read '.*trial_tree\.py', which is part .*{what}"
    ):
        digest_of(tree)
    assert gc.isenabled()


def test_a_workload_without_tensorflow_says_what_to_install(
    monkeypatch,
):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    code_digest._installed.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", version)
    message = r"resnet50 needs .*, which is not installed; install '.*\[tensorflow\]'"
    with pytest.raises(PlanError, match=message):
        code_digest.trial_digest("resnet50", "in_graph")


def ours(modules):
    """The files of modules that are in our packages, without records."""
    found = set()
    for name in modules:
        if name.split(".")[0] in ("harness", "replicator", "workloads"):
            path = ROOT / name.replace(".", "/")
            package = path / "__init__.py"  # a folder can be left by an older checkout
            path = package if package.exists() else path.with_suffix(".py")
            found.add(path.relative_to(ROOT).as_posix())
    return found


def test_what_starts_a_trial_is_measured():
    script = (
        "import sys, harness.run.trial_runner, harness.run.rounds;"
        "import harness.trial.worker;"
        "print(*(name for name, of in sys.modules.items() if of is not None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert ours(done.stdout.split()) <= set(code_digest.read_once(ROOT))


@pytest.mark.usefixtures("finished")
def test_other_code_is_refused(refuse, small, monkeypatch):
    monkeypatch.setattr(
        "harness.sources.code_digest.trial_digest", lambda *_: "another"
    )
    for words in (("sweep", *small, "--study=s"), ("sweep", "--study", "s")):
        assert re.search(
            r"made with code of .*commit.* \(digest \w{16}\); it is now the code of"
            r" commit \w{12}( with changes)? \(digest another\), .*go back to the code"
            r" of the study to resume it, or choose another --study",
            refuse(*words),
        )


@pytest.fixture
def identify(succeed):
    """Returns a function that gives the parts of a program, as a plan has them."""

    def parts(command):
        words = ("--command", f"{command} {{replicas}}", "--metric=step_time=(x)")
        size = ("--replicas=1", "--mode=weak", "--per-replica-batch-size=1")
        planned = succeed("sweep", "--dry-run", "--json", *words, *size)
        return json.loads(planned)["program_code"][""]

    return parts


@pytest.fixture
def program(tmp_path, monkeypatch, identify):
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    (root / "train.py").write_text("x = 1\n")
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    for words in (
        ("init", "--quiet"),
        ("add", "--all"),
        ("commit", "--quiet", "-m", "one"),
    ):
        subprocess.run(["git", *who, *words], check=True)
    (root / "own.log").write_text("1\n")
    command = f"{sys.executable} train.py"

    def watch():
        record = SimpleNamespace(command=f"{command} {{replicas}}")
        plan = SimpleNamespace(
            program_code={"": identify(command)},
            trials=[SimpleNamespace(spec=SimpleNamespace(program=record))],
        )
        return CodeWatch(plan, folders={}, left_out=[root / "runs"])

    return watch


def test_a_program_that_is_edited_has_changed(program, tmp_path):
    """And stays so when the edit is undone: trials have run meanwhile."""
    watch, file = program(), tmp_path / "repository" / "train.py"
    assert "" == watch.changed()
    file.write_text("x = 2\n")

    assert "uncommitted train.py 'none' / '" in watch.changed()
    file.write_text("x = 1\n")
    assert "uncommitted train.py" in watch.changed()
    assert "" == program().changed()


def test_an_interpreter_is_asked_again_once_it_has_changed(identify, tmp_path):
    """To list its packages takes 0.15 s, and was done twice for each trial."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\necho >> asked\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def times_asked():
        parts = identify(f"{python} train.py")
        assert re.fullmatch(r"[0-9]+ \(\w{16}\)", parts["packages"])
        return (tmp_path / "asked").read_text().count("\n")

    assert [1, 1] == [times_asked(), times_asked()]
    os.utime(python, (0, 0))
    assert 2 == times_asked()


@pytest.mark.parametrize(
    "start", ["env A=1 {}", "mpirun -n 2 {}", "sh -c 'A=1 {} | cat'"]
)
def test_packages_count_whatever_starts_the_interpreter(identify, start):
    """What is installed between two calls decides what is measured in each."""
    (direct, behind) = (
        identify(command)
        for command in (f"{sys.executable} train.py", start.format(sys.executable))
    )

    assert {"python", "packages"} <= direct.keys()
    assert {name: behind.get(name) for name in direct} == direct


def test_a_script_is_not_taken_for_an_interpreter(identify, tmp_path):
    """Which would start it."""
    script = tmp_path / "python_bench"
    script.write_text("#!/bin/sh\necho >> started\n")
    script.chmod(0o755)

    assert "program python_bench" in identify(str(script))
    assert not (tmp_path / "started").exists()


@pytest.fixture
def own_tree(tmp_path):
    file = tmp_path / "harness" / "run" / "trial_tree.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    no_plugins = SimpleNamespace(program_code={}, plugins={}, trials=[])
    watch = CodeWatch(no_plugins, folders={}, left_out=[], root=tmp_path)
    return SimpleNamespace(watch=watch, file=file)


def test_our_own_code_that_is_edited_has_changed(own_tree):
    """An edit that measures nothing is no change; else the file is named."""
    assert "" == own_tree.watch.changed()
    own_tree.file.write_text("a = 1  # a comment\n")
    assert "" == own_tree.watch.changed()
    own_tree.file.write_text("a = 2\n")
    found = own_tree.watch.changed()
    own_tree.file.write_text("a = 1\n")

    assert found.startswith("harness/run/trial_tree.py '")
    assert found == own_tree.watch.changed()


def test_our_own_code_that_is_new_or_gone_has_changed(own_tree):
    own_tree.file.with_name("other.py").write_text("")
    own_tree.file.unlink()

    assert own_tree.watch.changed().endswith("' / 'none' (and 1 more)")

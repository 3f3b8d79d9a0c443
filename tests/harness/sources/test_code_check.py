"""Trials of different code are never put into one study, whenever it is edited."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.command import identity
from harness.errors import DifferentStudyError, PlanError
from harness.planning import checked, plan
from harness.planning.request import SweepRequest
from harness.sources import code_digest
from harness.sources.code_digest import CodeWatch
from results.records.machine_record import MachineState
from results.records.models import Order, ScalingMode

BASE = SweepRequest(
    workload="resnet50",
    preset="smoke",
    replicas=(1, 2),
    modes=(ScalingMode.WEAK,),
    order=Order.SEQUENTIAL,
)


def plan_of(**changes):
    """Returns the plan record of a changed base request."""
    request = BASE.model_copy(update=changes)
    return plan.plan_sweep(request, checked.Machine(num_available_cores=4), "s")


@pytest.fixture
def other_code(monkeypatch):
    """Returns what changes the code from now on."""

    def change():
        monkeypatch.setattr(
            "harness.sources.code_digest.of_trial", lambda *_: "another"
        )

    return change


def test_other_code_is_refused(other_code):
    """Numbers of different code must not mix, by sweep or by resume."""
    first = plan_of()
    other_code()

    message = (
        r"made with code of an unrecorded commit \(digest \w{16}\); it is"
        r" now the code of commit \w{12}( with changes)? \(digest"
        r" another\), .*go back to the code of the study to resume it, or choose"
        r" another --study"
    )
    with pytest.raises(DifferentStudyError, match=message):
        plan.reconcile(first, plan_of())
    with pytest.raises(DifferentStudyError, match=message):
        code_digest.check_code(first)


def test_a_relay_of_other_code_is_refused_for_its_code(other_code):
    """Its cases have other ids then, so they look like cases that are added."""
    first = plan_of(order=Order.RELAY)
    other_code()

    with pytest.raises(
        DifferentStudyError, match=r"made with code of .* is now the code of"
    ):
        plan.reconcile(first, plan_of(order=Order.RELAY))


def test_the_commits_of_the_trials_are_named(tmp_path, synthetic, other_code):
    """Those of the records, so that the code can be found again."""
    store = synthetic.make_store(tmp_path / "study")
    trial = next(iter(store.trials()))
    state = MachineState(git_commit="0123456789ab" + "0" * 28, is_source_modified=True)
    store.write_env(
        trial.trial_id, trial.env.model_copy(update={"machine_state": state})
    )
    planned = store.read_plan()
    other_code()

    with pytest.raises(
        DifferentStudyError, match=r"code of commit 0123456789ab with changes \(digest"
    ):
        code_digest.check_code(planned, store=store)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Returns a function that watches a program in a repository: the current folder."""
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
    command = f"{sys.executable} train.py {{replicas}}"

    def watch():
        parts = identity.of_program(command, root, left_out=[root / "runs"])
        record = SimpleNamespace(command=command)
        plan = SimpleNamespace(
            program_code={"": parts},
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


@pytest.mark.parametrize(
    ("name", "what"),
    [("own.log", "uncommitted own.log"), ("uv.lock", "uv.lock 'none' / '")],
)
def test_other_files_of_a_program_that_have_changed(program, tmp_path, name, what):
    """One that git does not know, and a new lock file."""
    watch = program()
    (tmp_path / "repository" / name).write_text("2\n")

    assert what in watch.changed()


def test_what_a_program_writes_anew_is_no_change(program, tmp_path):
    """A new log or picture beside it, and the studies."""
    watch = program()
    (tmp_path / "repository" / "runs").mkdir()
    for name in ("loss.csv", "runs/plan.json"):
        (tmp_path / "repository" / name).write_text("1\n")

    assert "" == watch.changed()


def test_an_interpreter_that_does_not_answer_is_no_change(program, monkeypatch):
    """Of a busy machine, say: it is asked again, and one line says what to do."""
    watch = program()
    monkeypatch.setattr(identity, "INTERPRETER_SEC", 1e-6)
    with pytest.raises(PlanError, match="does not say its version any more, so the"):
        watch.changed()
    monkeypatch.undo()


def test_copies_are_not_looked_at(program, tmp_path, monkeypatch):
    """A gate runs worktrees of its own, whatever is edited meanwhile."""
    watch = program()
    plan = watch._plan
    (tmp_path / "repository" / "train.py").write_text("x = 2\n")

    assert "" == CodeWatch(plan, folders={"": tmp_path}, left_out=[]).changed()


@pytest.fixture
def ours(tmp_path):
    """A tree of our packages with one file, which is watched."""
    file = tmp_path / "harness" / "run" / "trial_tree.py"
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    no_plugins = SimpleNamespace(program_code={}, plugins={}, trials=[])
    watch = CodeWatch(no_plugins, folders={}, left_out=[], root=tmp_path)
    return SimpleNamespace(watch=watch, file=file)


def test_our_own_code_that_is_edited_has_changed(ours):
    """An edit that measures nothing is no change; else the file is named."""
    assert "" == ours.watch.changed()
    ours.file.write_text("a = 1  # a comment\n")
    assert "" == ours.watch.changed()
    ours.file.write_text("a = 2\n")
    found = ours.watch.changed()
    ours.file.write_text("a = 1\n")

    assert found.startswith("harness/run/trial_tree.py '")
    assert found == ours.watch.changed()


def test_our_own_code_that_is_new_or_gone_has_changed(ours):
    """All files are counted."""
    ours.file.with_name("other.py").write_text("")
    ours.file.unlink()

    assert ours.watch.changed().endswith("' / 'none' (and 1 more)")


def test_an_edit_between_planning_and_measuring_has_changed(tmp_path):
    """The watch compares with the code that the digests of the plan are of."""
    file = tmp_path / "replicator" / "engine.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    code_digest.read_once(tmp_path)
    file.write_text("a = 2\n")
    no_plugins = SimpleNamespace(program_code={}, plugins={}, trials=[])

    watch = CodeWatch(no_plugins, folders={}, left_out=[], root=tmp_path)
    assert watch.changed().startswith("replicator/engine.py '")


def test_a_plugin_that_has_changed(ours, monkeypatch):
    """The part of it is named."""
    found = "workload mine: files '1' / now '2'"
    monkeypatch.setattr(code_digest, "changed_plugin", lambda _: found)

    assert found == ours.watch.changed()

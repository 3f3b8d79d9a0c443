"""Every command that a page prints is one that runs, in a copy of the study."""

import html
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import published_studies
import pytest
from click.testing import CliRunner

from harness.cli import main, running
from harness.planning import plan as plan_lib
from harness.sources import code_digest
from reports.charts.svg import compact
from reports.exports import exports
from reports.page import build
from reports.view.view import view_store
from reports.words import brief, next_step
from results.records.models import TrialStatus
from results.store.study_store import Store

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = sorted(published_studies.SITE.glob("studies/*/index.html"))
COMMAND = re.compile(r"<(?:code|pre)[^>]*>(python -m harness [^<]+)</")
IN_MARKDOWN = re.compile(r"`(python -m harness [^`]+)`")


def _run(command, runs_dir, monkeypatch):
    """Runs a command as dry as its verb can be: a plan, or no trial at all."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "harness"]
    verb, *options = words[3:]
    with monkeypatch.context() as patch:
        # Nobody measured the studies of tests, and published ones are of older code.
        for module in (plan_lib, code_digest):
            patch.setattr(module, "check_code", lambda *_args, **_kwargs: None)
        patch.setattr(running, "run_until_done", lambda *_args, **_kwargs: 0)
        is_new = verb == "sweep" and {"--workload", "--command"} & {*options}
        dry = ["--dry-run"] if is_new else []
        arguments = [verb, *options, *dry, "--runs-dir", str(runs_dir)]
        done = CliRunner().invoke(main.cli, arguments)
    assert 0 == done.exit_code, (command, done.output, done.exception)
    return done.output


@pytest.mark.parametrize("page", PUBLISHED, ids=lambda path: path.parent.name)
def test_commands_of_published_pages_run(page, tmp_path, monkeypatch):
    """``Next``, ``Reproduce this point`` and ``Reproduce``, each of them once."""
    study = published_studies.study(page.parent.name)
    shutil.copytree(study, tmp_path / study.name)
    text = page.read_text(encoding="utf-8")
    found = {html.unescape(of) for of in COMMAND.findall(text)}

    assert len(found) >= 2
    for command in sorted(found):
        _run(command, tmp_path, monkeypatch)


@pytest.fixture
def made(tmp_path, synthetic):
    """Makes a study in the folder that commands look in."""

    def make(**fields):
        shape = synthetic.Shape(**fields)
        store = synthetic.make_store(tmp_path / "made", shape)
        plan = store.read_plan()
        (tmp_path / "made").rename(tmp_path / plan.study)
        return Store.open(tmp_path / plan.study)

    return make


def test_commands_for_more_generations_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(running, "run_until_done", lambda *_args, **_kwargs: 0)
        options = ["--workload", "resnet50", "--preset", "smoke", "--repeats", "4"]
        arguments = ["sweep", *options, "--study", "mine", "--runs-dir", str(tmp_path)]
        patch.setattr(sys, "argv", ["harness", *arguments])
        assert 0 == CliRunner().invoke(main.cli, arguments).exit_code
    plan = Store.open(tmp_path / "mine").read_plan()
    command = next_step.with_repetitions(plan, 6)

    output = _run(command, tmp_path, monkeypatch)
    assert "--study" not in command
    assert "6 generations" in output
    assert plan.measuring.minutes is not None
    assert command.endswith(f"--time-budget {plan.measuring.minutes * 6 / 4:g}min")


def test_a_command_with_a_baseline_runs(made, tmp_path, synthetic, monkeypatch):
    """Where everything that was planned is ok."""
    view = view_store(made(backends=("in_graph",), modes=(synthetic.WEAK,), repeats=1))
    (command,) = re.findall(r"`([^`]+)`", next_step.with_a_baseline(view))

    assert "--replicas" in command
    _run(command, tmp_path, monkeypatch)


def test_a_program_that_was_repaired_has_another_study():
    """Its code is another, so the study of the failures would refuse it."""
    plan = SimpleNamespace(
        study="s",
        command=("python", "-m", "harness", "sweep", "--study", "s", "--a=b"),
        trials=(),
    )
    trial = SimpleNamespace(state="failed", is_ok=False)
    study = SimpleNamespace(program="a {replicas}", planned=[trial], plan=plan)
    view = SimpleNamespace(study=study)
    again = "then `python -m harness sweep --a=b`"

    assert f"fix this, {again}" == next_step.after_failures(view)
    assert f"fix what 'status' says of the others, {again}" == (
        next_step.with_a_baseline(view)
    )
    study.program = None
    assert next_step.after_failures(view).endswith("sweep --study s --retry failed`")


def test_commands_after_failures_and_of_markdown_run(
    made, tmp_path, synthetic, monkeypatch
):
    """A study of which every trial failed, and the export of a large one."""
    weak = synthetic.WEAK
    store = made(
        backends=("in_graph",),
        modes=(weak,),
        repeats=1,
        statuses={("in_graph", weak, n, 0): TrialStatus.FAILED for n in (1, 2)},
    )
    view = view_store(store)
    commands = [text for text, typed in brief.judge(view).next_parts if typed]
    commands += re.findall(r"`([^`]+)`", next_step.with_a_baseline(view))
    commands.append(next_step.export(view.study.plan, "csv"))

    assert 3 == len(commands)
    for command in commands:
        _run(command, tmp_path, monkeypatch)
    assert {*IN_MARKDOWN.findall(exports.as_markdown(store))} <= {*commands}
    page = html.unescape(build.build_report(store))
    assert all(command in page for command in commands[:1])


@pytest.mark.parametrize("order", ["relay", "sequential"])
def test_commands_name_the_replicas_that_were_measured(tmp_path, monkeypatch, order):
    """Their default is the cores of the machine that the command is typed on."""
    options = ["--workload=resnet50", "--preset=smoke", f"--order={order}"]
    arguments = ["sweep", *options, "--study", "mine", "--runs-dir", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(running, "run_until_done", lambda *_args, **_kwargs: 0)
        patch.setattr(sys, "argv", ["harness", *arguments])
        assert 0 == CliRunner().invoke(main.cli, arguments).exit_code
    plan = Store.open(tmp_path / "mine").read_plan()
    sizes = sorted({trial.spec.num_replicas for trial in plan.trials})
    wanted = f"--replicas {','.join(map(str, sizes))}"

    for command in (
        next_step.command_of_study(plan),
        next_step.with_repetitions(plan, 6),
        next_step.other_study(plan, {"--seed": "3"}),
    ):
        assert wanted in command
        assert 1 == command.count("--replicas")


@pytest.fixture(scope="module")
def view(tmp_path_factory, synthetic):
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("study")))


def test_the_command_of_a_point_plans_the_point(view, tmp_path):
    """It is a command line that the harness accepts, as a dry run."""
    point = next(p for p in view.points if p.num_replicas == 2)
    words = shlex.split(next_step.command(view.study.plan, point))
    arguments = [
        "sweep",
        "--dry-run",
        *words[words.index("sweep") + 1 :],
        "--runs-dir",
        str(tmp_path),
    ]
    done = CliRunner().invoke(main.cli, arguments)

    assert 0 == done.exit_code, done.output
    assert point.backend in done.output
    assert ["--replicas", "1,2"] == words[words.index("--replicas") :][:2]
    assert ["--seed", "7"] == words[words.index("--seed") :][:2]


def test_options_of_the_point_replace_those_of_the_sweep(view):
    """In both spellings; those of the workload stay."""
    command = (
        "python",
        "-m",
        "harness",
        "sweep",
        "--backends",
        "a,b",
        "--replicas=1..8",
    )
    command += ("--preset", "smoke", "--study", "x")
    plan = view.study.plan.model_copy(update={"command": command})
    text = next_step.command(plan, view.points[0])

    assert 1 == text.count("--backends") == text.count("--replicas")
    assert "--preset smoke" in text
    assert "--study" not in text
    other = plan.model_copy(update={"command": ("python", "-m", "harness", "gate")})
    assert "" == next_step.command(other, view.points[0])


def test_commit_and_seeds_of_a_point_are_those_of_its_trials(view):
    """Records of a folder without git say so."""
    assert "1000, 1001, 1002" == next_step.seeds(view.points[0].case)
    assert "not recorded" == next_step.commits(view.points[0].case)


def test_a_drawing_is_smaller_and_says_the_same():
    """Texts keep their spaces; groups with attributes and marks stay."""
    text = (
        '<g>\n<g clip-path="url(#a)">\n'
        '<use href="#m" x="1" y="2" style="fill: red; stroke: blue"/>\n'
        '<use href="#m" x="3" y="4" style="fill: red; stroke: blue"/>\n</g>\n'
        '<g/>\n<path d="M 0 0 \nL 1 2 \n" style="fill: none"/>\n'
        "<text>a, b: c; d</text>\n</g>"
    )

    assert (
        '<g clip-path="url(#a)" style="fill:red;stroke:blue">'
        '<use href="#m" x="1" y="2"/>\n<use href="#m" x="3" y="4"/>\n</g>\n'
        '<path d="M0 0L1 2" style="fill:none"/>\n<text>a, b: c; d</text>'
    ) == compact(text).strip()


def test_marks_of_different_styles_keep_them():
    """A group has one style only."""
    mark = '<use href="#m" x="{}" style="fill: {}"/>'
    marks = mark.format(1, "red") + mark.format(2, "blue")

    assert marks.replace(": ", ":") in compact(f'<g clip-path="url(#a)">{marks}</g>')

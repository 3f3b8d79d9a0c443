"""Every command that a page prints is one that runs, in a copy of the study."""

import dataclasses
import html
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import study_files
from click.testing import CliRunner
from fake_machine import with_cpus

import reports
from harness import command_line
from harness.sources import code_digest
from reports import render_section, verdict, view_store
from results import Program, ScalingMode, Store, TrialStatus

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = sorted(study_files.SITE.glob("studies/*/index.html"))
COMMAND = re.compile(r"<(?:code|pre)[^>]*>(python -m harness [^<]+)</")
WEAK = ScalingMode.WEAK
SMALL = {"backends": ("in_graph",), "modes": (WEAK,), "repeats": 1}
SWEEP = ("python", "-m", "harness", "sweep")
IN_MARKDOWN = re.compile(r"`(python -m harness [^`]+)`")


def _end(_core):
    """Ends a sweep well before its first trial is started."""
    raise SystemExit


MEASURES_NOTHING = {"canary": _end}


def _run(command, runs_dir, monkeypatch):
    """Runs a command as dry as its subcommand can be: a plan, or no trial at all."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "harness"]
    subcommand, *options = words[3:]
    with monkeypatch.context() as patch:
        # Nobody measured the studies of tests, and published ones are of older code.
        patch.setattr(code_digest, "check_code", lambda *_args, **_kwargs: None)
        is_new = subcommand == "sweep" and {"--workload", "--command"} & {*options}
        dry = ["--dry-run"] if is_new else []
        arguments = [subcommand, *options, *dry, "--runs-dir", str(runs_dir)]
        changes = MEASURES_NOTHING | with_cpus(range(2))
        done = CliRunner().invoke(command_line, arguments, obj=changes)
    assert 0 == done.exit_code, (command, done.output, done.exception)
    return done.output


@pytest.mark.parametrize("page", PUBLISHED, ids=lambda path: path.parent.name)
def test_commands_of_published_pages_run(page, tmp_path, monkeypatch):
    study = study_files.published(page.parent.name)
    shutil.copytree(study, tmp_path / study.name)
    text = page.read_text(encoding="utf-8")
    commands = sorted({html.unescape(of) for of in COMMAND.findall(text)})
    by_options = {tuple(re.findall(r"--[\w-]+", of)): of for of in commands}

    assert len(by_options) >= 2
    for command in by_options.values():
        _run(command, tmp_path, monkeypatch)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Returns a function that plans a sweep of one study, and measures nothing."""

    def plan(*options):
        words = ["sweep", "--workload", "resnet50", "--preset", "smoke", *options]
        arguments = [*words, "--study", "mine", "--runs-dir", str(tmp_path)]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["harness", *arguments])
            done = CliRunner().invoke(command_line, arguments, obj=MEASURES_NOTHING)
        assert 0 == done.exit_code, done.output
        return Store.open(tmp_path / "mine").read_plan()

    return plan


def of_plan(view, plan):
    """Returns the view of a study as if it had been planned so."""
    return dataclasses.replace(view, study=dataclasses.replace(view.study, plan=plan))


def typed(view):
    """Returns the commands of the first screen."""
    return [text for text, is_typed in verdict(view).next_parts if is_typed]


@pytest.fixture(scope="module")
def noisy(make):
    """Four runs, which tell no backends apart."""
    return view_store(make(noise=0.3, num_rounds=4, repeats=4))


def test_commands_for_more_repetitions_run(planned, noisy, tmp_path, monkeypatch):
    plan = planned("--repeats", "4")
    (command,) = typed(of_plan(noisy, plan))
    output = _run(command, tmp_path, monkeypatch)

    assert "--study" not in command
    assert "8 runs" in output
    assert plan.measuring.minutes is not None
    assert command.endswith(f"--time-budget {plan.measuring.minutes * 8 / 4:g}min")


@pytest.mark.parametrize(
    ("failed", "what"),
    [((1, 2), "this"), ((2,), "what 'status' says of the others")],
)
def test_a_program_that_was_repaired_has_another_study(make, failed, what):
    statuses = {("in_graph", WEAK, n, 0): TrialStatus.FAILED for n in failed}
    view = view_store(make(**SMALL, statuses=statuses))
    update = {"study": "s", "command": (*SWEEP, "--study", "s", "--a=b")}
    own = of_plan(view, view.study.plan.model_copy(update=update))
    program = Program(command="a {replicas}", metric="client", unit="rows")
    study = study_files.with_specs(view.study, program=program)
    plan = view.study.plan.model_copy(update=update | {"program_code": {"a": "b"}})
    of_program = of_plan(dataclasses.replace(view, study=study), plan)
    commands = "sweep --study s --retry failed", "sweep --a=b --replicas 1,2"

    assert [f"fix {what}, then `python -m harness {words}`" for words in commands] == [
        verdict(of).following for of in (own, of_program)
    ]


def test_commands_after_failures_and_of_markdown_run(tmp_path, synthetic, monkeypatch):
    def made(name, *failed, **fields):
        statuses = {("in_graph", WEAK, n, 0): TrialStatus.FAILED for n in failed}
        shape = synthetic.Shape(name=name, statuses=statuses, **SMALL | fields)
        return synthetic.make_store(tmp_path / name, shape)

    failed = made("failed", 1, 2)
    stores = (made("one", replicas=(1,)), failed, made("half", 2))
    commands = [text for store in stores for text in typed(view_store(store))]
    large = made("large", replicas=tuple(range(1, 25)))
    commands += IN_MARKDOWN.findall(reports.as_markdown(large))

    assert 4 == len(commands)
    assert "--replicas" in commands[0]
    for command in commands:
        _run(command, tmp_path, monkeypatch)
    assert {*IN_MARKDOWN.findall(reports.as_markdown(failed))} <= {*commands}
    assert commands[1] in html.unescape(reports.build_report(failed))


@pytest.mark.parametrize("order", ["relay", "sequential"])
def test_commands_name_the_replicas_that_were_measured(
    planned, noisy, interleaved, order
):
    """Of more runs, of controls, and of the study itself."""
    plan = planned(f"--order={order}")
    sizes = sorted({trial.spec.num_replicas for trial in plan.trials})
    wanted = f"--replicas {','.join(map(str, sizes))}"
    views = [of_plan(view, plan) for view in (noisy, interleaved)]
    commands = [text for view in views for text in typed(view)]
    commands += COMMAND.findall(render_section("method", views[0]))

    assert 3 == len(commands)
    for command in commands:
        assert wanted in command
        assert 1 == command.count("--replicas")


def test_new_options_replace_those_of_the_sweep(make):
    view = view_store(make(**SMALL | {"replicas": (1,)}))
    options = [
        *("--backends", "a,b", "--replicas=1..8", "--preset", "smoke"),
        *("--study", "x", "--study", "x"),
    ]

    def following(*command):
        plan = view.study.plan.model_copy(update={"command": command})
        return verdict(of_plan(view, plan)).following

    text = following(*SWEEP, *options)
    assert 1 == text.count("--backends") == text.count("--replicas")
    assert "--replicas 1,2" in text
    assert "--preset smoke" in text
    assert "--study" not in text
    assert "" == following("python", "train.py")

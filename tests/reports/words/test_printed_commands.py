"""Every command that a page prints is one that runs, in a copy of the study."""

import html
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import study_files
from click.testing import CliRunner
from fake_machine import set_cores

import reports
from harness import command_line
from harness.cli import running
from harness.sources import code_digest
from reports import view_store
from reports.exports import exports
from reports.words import brief
from results import Store, TrialStatus

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = sorted(study_files.SITE.glob("studies/*/index.html"))
COMMAND = re.compile(r"<(?:code|pre)[^>]*>(python -m harness [^<]+)</")
IN_MARKDOWN = re.compile(r"`(python -m harness [^`]+)`")


def _run(command, runs_dir, monkeypatch):
    """Runs a command as dry as its subcommand can be: a plan, or no trial at all."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "harness"]
    subcommand, *options = words[3:]
    with monkeypatch.context() as patch:
        # Nobody measured the studies of tests, and published ones are of older code.
        patch.setattr(code_digest, "check_code", lambda *_args, **_kwargs: None)
        patch.setattr(running, "run_until_done", lambda *_args, **_kwargs: 0)
        is_new = subcommand == "sweep" and {"--workload", "--command"} & {*options}
        dry = ["--dry-run"] if is_new else []
        arguments = [subcommand, *options, *dry, "--runs-dir", str(runs_dir)]
        done = CliRunner().invoke(command_line, arguments)
    assert 0 == done.exit_code, (command, done.output, done.exception)
    return done.output


@pytest.mark.parametrize("page", PUBLISHED, ids=lambda path: path.parent.name)
def test_commands_of_published_pages_run(page, tmp_path, monkeypatch):
    set_cores(monkeypatch, range(2))
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
            patch.setattr(running, "run_until_done", lambda *_args, **_kwargs: 0)
            patch.setattr(sys, "argv", ["harness", *arguments])
            assert 0 == CliRunner().invoke(command_line, arguments).exit_code
        return Store.open(tmp_path / "mine").read_plan()

    return plan


def test_commands_for_more_repetitions_run(planned, tmp_path, monkeypatch):
    plan = planned("--repeats", "4")
    command = brief.with_repetitions(plan, 6)
    output = _run(command, tmp_path, monkeypatch)

    assert "--study" not in command
    assert "6 runs" in output
    assert plan.measuring.minutes is not None
    assert command.endswith(f"--time-budget {plan.measuring.minutes * 6 / 4:g}min")


def test_a_program_that_was_repaired_has_another_study():
    plan = SimpleNamespace(
        study="s",
        command=("python", "-m", "harness", "sweep", "--study", "s", "--a=b"),
        trials=(),
    )
    trial = SimpleNamespace(state="failed", is_ok=False)
    study = SimpleNamespace(program="a {replicas}", planned=[trial], plan=plan)
    view = SimpleNamespace(study=study)
    again = "then `python -m harness sweep --a=b`"

    assert f"fix this, {again}" == brief.after_failures(view)
    assert f"fix what 'status' says of the others, {again}" == (
        brief.with_a_baseline(view)
    )
    study.program = None
    assert brief.after_failures(view).endswith("sweep --study s --retry failed`")


def test_commands_after_failures_and_of_markdown_run(tmp_path, synthetic, monkeypatch):
    def made(**fields):
        defaults = {"backends": ("in_graph",), "modes": (synthetic.WEAK,)}
        shape = synthetic.Shape(repeats=1, **(defaults | fields))
        return synthetic.make_store(tmp_path / shape.name, shape)

    whole = view_store(made(name="whole"))
    failed = {("in_graph", synthetic.WEAK, n, 0): TrialStatus.FAILED for n in (1, 2)}
    store = made(name="failed", statuses=failed)
    view = view_store(store)
    (with_baseline,) = re.findall(r"`([^`]+)`", brief.with_a_baseline(whole))
    commands = [text for text, typed in brief.judge(view).next_parts if typed]
    commands += re.findall(r"`([^`]+)`", brief.with_a_baseline(view))
    commands.append(brief.export(view.study.plan, "csv"))

    assert "--replicas" in with_baseline
    assert 3 == len(commands)
    for command in (with_baseline, *commands):
        _run(command, tmp_path, monkeypatch)
    assert {*IN_MARKDOWN.findall(exports.as_markdown(store))} <= {*commands}
    assert commands[0] in html.unescape(reports.build_report(store))


@pytest.mark.parametrize("order", ["relay", "sequential"])
def test_commands_name_the_replicas_that_were_measured(planned, order):
    plan = planned(f"--order={order}")
    sizes = sorted({trial.spec.num_replicas for trial in plan.trials})
    wanted = f"--replicas {','.join(map(str, sizes))}"

    for command in (
        brief.command_of_study(plan),
        brief.with_repetitions(plan, 6),
        brief.other_study(plan, {"--order": "sequential"}),
    ):
        assert wanted in command
        assert 1 == command.count("--replicas")


def test_new_options_replace_those_of_the_sweep(sequence):
    harness = ("python", "-m", "harness")
    options = [
        "--backends",
        "a,b",
        "--replicas=1..8",
        "--preset",
        "smoke",
        "--study",
        "x",
    ]
    plan = sequence.study.plan.model_copy(
        update={"command": (*harness, "sweep", *options, "--study", "x")}
    )
    options = {"--backends": "c", "--replicas": "1,2"}
    text = brief.other_study(plan, options)

    assert 1 == text.count("--backends") == text.count("--replicas")
    assert "--preset smoke" in text
    assert "--study" not in text
    other = plan.model_copy(update={"command": (*harness, "gate")})
    assert "" == brief.other_study(other, options)

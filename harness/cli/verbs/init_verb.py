"""The verb ``init``: what a repository needs to repeat a study."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import pydantic

from harness.cli import exit_codes, study_file
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, RunsDir, StudyArgument
from harness.errors import PlanError
from harness.options.option import Option, Options
from harness.options.study_keys import keys_of
from harness.planning import study as study_module
from harness.planning.request import SweepRequest
from results.store import atomic
from results.store.study_store import Store
from results.study import cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.cli.verb import Call
    from results.records.models import Plan

_STUDY: Final = "study.toml"
_WORKFLOW: Final = ".github/workflows/scaling.yml"
_README: Final = "SCALING.md"
_FILES: Final = (_STUDY, _WORKFLOW, _README)
_LEFT_OUT: Final = ("study",)
# A gate has as many generations as its verdict takes.
_NOT_OF_GATES: Final = ("repeats",)
_WORKFLOW_TEXT: Final = """\
# Written by 'python -m harness init'. On a shared runner, times are advice: the exit
# codes 3 (inconclusive) and 6 (unfit machine) do not fail the job.
on: pull_request
permissions:
  contents: read
jobs:
  scaling:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v7
        with: {{ fetch-depth: 0, persist-credentials: false }}
{needed}
      # Not in the checkout, whose uncommitted files are part of what is judged.
      - run: |
          python3 -m venv "$RUNNER_TEMP/harness"
          "$RUNNER_TEMP/harness/bin/pip" install {package}
      - env:
          BASE: ${{{{ github.event.pull_request.base.sha }}}}
        run: |
          code=0
          "$RUNNER_TEMP/harness/bin/python" -m harness {words} || code=$?
          case $code in 0|3|6) ;; *) exit $code ;; esac
"""
_REQUIREMENTS: Final = "requirements.txt"
_NEEDED: Final = (
    "      # Install here what the program needs; what differs between revisions, by"
    " --setup."
)
# An environment, since pip does not change the Python of hosted runners.
_INSTALLS: Final = f"""\
      - run: |
          python3 -m venv "$RUNNER_TEMP/program"
          "$RUNNER_TEMP/program/bin/pip" install -r {_REQUIREMENTS}
          echo "$RUNNER_TEMP/program/bin" >> "$GITHUB_PATH\""""
_README_TEXT: Final = """\
# How this scales

`study.toml` says what is measured. On a quiet machine:

    pip install {package}
    python -m harness sweep --file study.toml

The same command resumes a study that was interrupted. It prints a verdict, and the path
of a page with all figures; `python -m harness verify STUDY` recomputes them. Keep
`runs/` out of git. {judged}

Written from a study in which {num_ok} of {num_trials} trials were ok.
"""


class InitRequest(Options):
    """From which study, and where to."""

    study: StudyArgument
    output: Annotated[
        Path, Option(also=("-o",), help="The repository.", default="current folder")
    ] = Path()
    runs_dir: RunsDir = RUNS_DIR


def run(request: InitRequest, _: Call) -> int:
    """Writes the files, or none.

    Raises:
      PlanError: The study has no ok trial or is of another verb, or a file is there.
    """
    store = Store.open(study_module.find_study(request.study, request.runs_dir))
    entries = cases.load_study(store).entries
    num_ok = sum(entry.is_ok for entry in entries)
    if not num_ok:
        raise PlanError(
            f"study {request.study!r} has no ok trial, so its command is not known to"
            " work; 'status' says why; repeat it with --retry failed, then init"
        )
    there = [name for name in _FILES if (request.output / name).exists()]
    if there:
        raise PlanError(
            f"{there[0]!r} is in {str(request.output.absolute())!r} already, and init"
            " replaces nothing; move it away, or name another folder with -o"
        )
    given = _given(store.read_plan())
    is_program = "command" in given
    words = _gate_words(given) if is_program else ["sweep", "--file", _STUDY]
    package = _package(is_light=is_program)
    judged = (
        f"`{_WORKFLOW}` judges each pull request beside its base."
        if is_program
        else f"`{_WORKFLOW}` repeats it for each pull request."
    )
    base = ' --baseline "$BASE"' if is_program else ""
    texts = {
        _STUDY: _toml(given),
        _WORKFLOW: _WORKFLOW_TEXT.format(
            package=package,
            words=shlex.join(words) + base,
            needed=_needed(request.output),
        ),
        _README: _README_TEXT.format(
            package=package, judged=judged, num_ok=num_ok, num_trials=len(entries)
        ),
    }
    _write({request.output / name: text for name, text in texts.items()})
    study_file.read(request.output / _STUDY, SweepRequest)
    return exit_codes.OK


def _needed(root: Path) -> str:
    """Returns the step that installs what the program needs, or where it belongs."""
    if not (root / _REQUIREMENTS).is_file():
        return _NEEDED
    return f"{_NEEDED}\n{_INSTALLS}"


def _write(texts: Mapping[Path, str]) -> None:
    """Writes all files or none: where one of them is, the next run refuses to write.

    Raises:
      OSError: One cannot be written.
    """
    written: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            written.append(path)
            atomic.write_text(path, text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    for path in written:
        click.echo(one_line(str(path)))


def _given(plan: Plan) -> dict[str, Any]:
    """Returns the settings of the recorded command, as a study file has them.

    Raises:
      PlanError: It is no sweep.
    """
    from harness.cli.main import VERBS
    from harness.cli.verb import given_texts

    words = plan.command[3:]
    if not words or words[0] != "sweep":
        raise PlanError(
            f"study {plan.study!r} was made by {shlex.join(plan.command)!r}, and a"
            " study file is of a sweep; give a study of 'sweep'"
        )
    verb = next(verb for verb in VERBS if verb.name == "sweep")
    context = verb.make_context("sweep", list(words[1:]))
    texts = given_texts(context)
    found = {}
    for name, key in keys_of(SweepRequest).items():
        if key.field in texts and name not in _LEFT_OUT:
            found[name] = _value(texts[key.field], key.kind.annotation)
    return found


def _value(text: Any, annotation: Any) -> Any:
    """Returns a value of a command line as TOML has it."""
    adapter = pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(strict=True))
    for value in _readings(text):
        try:
            adapter.validate_python(value)
        except pydantic.ValidationError:
            continue
        return value
    return text


def _readings(text: Any) -> Iterable[Any]:
    if not isinstance(text, str):
        if isinstance(text, (tuple, list)):
            pairs = (part.partition("=") for part in map(str, text))
            yield {key: value for key, _, value in pairs}
            yield list(text)
        yield text
        return
    parts = text.split(",")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            yield kind(text)
        with contextlib.suppress(ValueError):
            yield [kind(part) for part in parts]
    yield text
    yield parts


def _toml(given: Mapping[str, Any]) -> str:
    """Returns settings as TOML, whose texts, numbers and arrays are those of JSON."""
    plain = {k: v for k, v in given.items() if not isinstance(v, dict)}
    lines = ["# python -m harness sweep --file study.toml", ""]
    lines += [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    for name in given.keys() - plain.keys():
        lines += ["", f"[{name}]"]
        lines += [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in given[name].items()]
    return "\n".join(lines) + "\n"


def _gate_words(given: Mapping[str, Any]) -> Sequence[str]:
    from harness.cli.main import VERBS

    verb = next(verb for verb in VERBS if verb.name == "gate")
    known = {option: param for param in verb.params for option in param.opts}
    words = ["gate"]
    for name, value in given.items():
        option = f"--{name}"
        if name in _NOT_OF_GATES or option not in known or isinstance(value, dict):
            continue
        if isinstance(value, bool):
            words += [option] if value else known[option].secondary_opts
        elif isinstance(value, list) and known[option].multiple:
            words += [word for each in value for word in (option, str(each))]
        elif isinstance(value, list):
            words += [option, ",".join(map(str, value))]
        else:
            words += [option, str(value)]
    return words


def _package(*, is_light: bool) -> str:
    version = importlib.metadata.version("replicator-harness")
    extra = "" if is_light else "[tensorflow]"
    return f"'replicator-harness{extra}=={version}'"

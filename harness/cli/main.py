"""The command line: ``python -m harness VERB``.

Only click and the standard library are imported at the top, so that ``--help`` answers
immediately; what a verb needs is imported when it runs. stdout is for data, stderr for
progress, notes and errors. There are no interactive prompts.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from harness.cli import exit_codes, launch_verbs, reporting_verbs, store_verbs
from harness.cli.arguments import check_arguments, one_line, refusal
from harness.cli.judging_verbs import VERBS
from harness.cli.launch_options import (
    launch_options,
    launcher_option,
    take_launching,
)
from harness.cli.parsing import make_request
from harness.cli.study_file import command, study_file_option
from harness.cli.sweep_options import (
    SECONDS,
    data_dir_option,
    json_option,
    request_options,
    runs_dir_option,
)
from harness.errors import HarnessError, Interrupted, UnfitMachineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


MAX_RELAY_SEC = 3600.0
SCRIPT = "replicator-harness"
"""The command that installing the package makes: shells complete commands by name."""
COMPLETION = "_REPLICATOR_HARNESS_COMPLETE"
"""The variable by which a shell asks click for completions."""


class _Group(click.Group):
    """Lists the verbs in the order in which a user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or ctx.resilient_parsing:
        return
    import importlib.metadata

    try:
        version = importlib.metadata.version(SCRIPT)
    except importlib.metadata.PackageNotFoundError:
        version = "unknown: the package is not installed; run 'make setup'"
    click.echo(f"{SCRIPT} {version}")
    ctx.exit()


@click.group(
    cls=_Group,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 ok, 1 regression, 2 usage, 3 inconclusive, 4 some trials failed,"
        " 5 nothing measured, 6 machine unfit, 70 internal error, 130 interrupted (run"
        " the same command to resume)."
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Measures how a training step scales over replicas, and records the evidence."""


_retry_option = click.option(
    "--retry",
    type=click.Choice(["failed"]),
    help="Run trials with a recorded failure again.",
)
_keep_option = click.option(
    "--keep-checkpoints",
    "are_checkpoints_kept",
    is_flag=True,
    help="Also keep the last checkpoint of quality runs that succeed.",
)


@cli.command()
@study_file_option
@request_options
@launch_options
@_retry_option
@_keep_option
@click.option(
    "--dry-run", is_flag=True, help="Only print the trials and a time estimate."
)
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    *,
    study: str | None,
    runs_dir: Path,
    is_json: bool,
    retry: str | None,
    are_checkpoints_kept: bool,
    dry_run: bool,
    **settings: Any,
) -> int:
    """Runs a sweep and writes the report; run it again to resume."""
    from harness.cli import commands

    launching = take_launching(settings)
    return commands.sweep(
        make_request(settings),
        study=study,
        runs_dir=runs_dir,
        is_json=is_json,
        is_dry_run=dry_run,
        launching=launching,
        is_failed_retried=retry == "failed",
        are_checkpoints_kept=are_checkpoints_kept,
        overrides=ctx.obj,
        command=command(ctx),
    )


@cli.command()
@study_file_option
@request_options
@launch_options
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    *,
    study: str | None,
    runs_dir: Path,
    is_json: bool,
    **settings: Any,
) -> int:
    """Prints the trials of a sweep and a time estimate; runs nothing."""
    from harness.cli import commands

    launching = take_launching(settings)
    return commands.sweep(
        make_request(settings),
        launching=launching,
        study=study,
        runs_dir=runs_dir,
        is_json=is_json,
        is_dry_run=True,
        command=command(ctx),
    )


cli.add_command(reporting_verbs.list_)


@cli.command()
@click.argument("study", shell_complete=reporting_verbs.complete_study)
@runs_dir_option
@json_option
def status(study: str, *, runs_dir: Path, is_json: bool) -> int:
    """Shows the progress of a study and its failures."""
    from harness.cli import study_status

    return study_status.status(study, runs_dir=runs_dir, is_json=is_json)


@cli.command()
@click.argument("study", shell_complete=reporting_verbs.complete_study)
@runs_dir_option
@_retry_option
@_keep_option
@data_dir_option
@click.option(
    "--timeout",
    "timeout_sec",
    type=SECONDS,
    metavar="SECONDS",
    help="Time limit of one trial.  [default: the plan's]",
)
@launcher_option
@json_option
@click.pass_context
def resume(
    ctx: click.Context,
    /,
    *,
    study: str,
    runs_dir: Path,
    retry: str | None,
    are_checkpoints_kept: bool,
    data_dir: Path | None,
    timeout_sec: float | None,
    launcher: str,
    is_json: bool,
) -> int:
    """Runs the missing trials of a study."""
    from harness.cli import commands

    return commands.resume(
        study,
        runs_dir=runs_dir,
        is_json=is_json,
        timeout_sec=timeout_sec,
        is_failed_retried=retry == "failed",
        are_checkpoints_kept=are_checkpoints_kept,
        data_dir=data_dir,
        overrides=ctx.obj,
        launcher_name=launcher,
    )


cli.add_command(reporting_verbs.report)


@cli.command()
@click.argument("study", shell_complete=reporting_verbs.complete_study)
@runs_dir_option
@json_option
def verify(study: str, *, runs_dir: Path, is_json: bool) -> int:
    """Recomputes all figures of a study from its raw observations.

    Exit code 4 if a figure differs or cannot be recomputed, 5 if none can.
    """
    from harness.cli import verify_verb

    return verify_verb.verify(study, runs_dir=runs_dir, is_json=is_json)


cli.add_command(reporting_verbs.history)
cli.add_command(store_verbs.store)


@cli.command()
@click.option(
    "--relay",
    "relay_sec",
    type=click.FloatRange(min=0, max=MAX_RELAY_SEC),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for a relay of two equal cases; 0 leaves it out.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="What a sweep would run on; gpu checks the GPUs with TensorFlow as well.",
)
@json_option
def doctor(*, relay_sec: float, device: str, is_json: bool) -> int:
    """Checks whether this machine can be timed, and says what to do.

    Looks for neighbours, throttling, swap and settings, measures what a core does when
    all are busy, and what interval a default sweep could give. Takes about 15 s
    and the relay. Exit code 6 if timings would be unusable.
    """
    from harness.cli import doctor_verb

    return doctor_verb.doctor(is_json=is_json, relay_sec=relay_sec, device=device)


for _verb in VERBS:
    cli.add_command(_verb)
cli.add_command(launch_verbs.launch)


def main(
    argv: Sequence[str] | None = None,
    *,
    run_overrides: Mapping[str, Any] | None = None,
) -> int:
    """Runs the command line and returns the exit code.

    Args:
      argv: The arguments; by default those of the process.
      run_overrides: Replaces fields of ``trial.RunSettings``, such as the process of a
        trial; for tests.
    """
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        check_arguments(arguments)
        is_completing = COMPLETION in os.environ
        if not arguments and not is_completing:
            # Code 0 would tell a script that something was done.
            click.echo(cli.get_help(click.Context(cli, info_name="python -m harness")))
            return exit_codes.USAGE
        code = cli.main(
            arguments,
            prog_name=SCRIPT if is_completing else "python -m harness",
            complete_var=COMPLETION,
            standalone_mode=False,
            obj=run_overrides or {},
        )
    except (KeyboardInterrupt, click.Abort, Interrupted):
        click.echo("interrupted", err=True)
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed stdout, as in `... | head`. Python flushes
        # stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except Exception as error:  # noqa: BLE001 - Python's own code 1 would be a verdict
        message = _user_message(error)
        if message is None:
            return _tell_fault(error)
        click.echo(f"error: {one_line(message)}", err=True)
        is_unfit = isinstance(error, UnfitMachineError)
        return exit_codes.UNFIT if is_unfit else exit_codes.USAGE
    return int(code or exit_codes.OK)


def _tell_fault(error: Exception) -> int:
    """Prints the traceback of an internal error and returns its exit code."""
    import traceback

    traceback.print_exception(error)
    click.echo(
        "error: internal error; finished trials are kept, "
        "run the same command to resume",
        err=True,
    )
    return exit_codes.INTERNAL_FAULT


def _user_message(error: Exception) -> str | None:
    """Returns the message for an error that the user can fix; None for any other."""
    if isinstance(error, click.UsageError):
        verb = error.ctx.command_path if error.ctx else "python -m harness"
        return f"{error.format_message()} (see {verb} --help)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError):
        return refusal(error)
    from results.errors import ResultsError

    return str(error) if isinstance(error, (HarnessError, ResultsError)) else None

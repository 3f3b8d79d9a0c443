"""The command line: ``python -m harness SUBCOMMAND``.

Only click and the standard library are imported at the top, so that ``--help`` answers
immediately; what a subcommand needs is imported when it runs. stdout is for data,
stderr for progress, notes and errors. There are no interactive prompts.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import STUDY_FILE, Subcommand, check_arguments, one_line
from harness.errors import HarnessError, Interrupted, UnfitMachineError, causes

SCRIPT = "replicator-harness"
"""The command that installing the package makes: shells complete commands by name."""
COMPLETION = "_REPLICATOR_HARNESS_COMPLETE"
"""The variable by which a shell asks click for completions."""


OUT_OF_MEMORY = (
    "there is not enough memory for this; end other programs, or allow this one more"
    " ('ulimit -v', the limit of its control group); what was finished is kept, so run"
    " the same command again"
)
# Errors that a path chosen by the user can cause; none of them is a bug of ours.
_REFUSALS = frozenset(
    {
        *(errno.EACCES, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.ELOOP),
        *(errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOMEM, errno.ENOSPC),
        *(errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT),
    }
)


class _Group(click.Group):
    """Lists the subcommands in the order in which a user needs them."""

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


_SUBCOMMANDS = (
    Subcommand(
        "sweep",
        """Runs a sweep and writes the report; run it again to resume.

        FILE is a study as a TOML file: its keys are these options without dashes, and
        options beside it override it.
        """,
        model="RunRequest",
        arguments=[STUDY_FILE],
    ),
    Subcommand(
        "list", "Lists workloads, backends and presets, or the studies of a directory."
    ),
    Subcommand("status", "Shows the progress of a study and its failures."),
    Subcommand(
        "report",
        """Builds the report of a study, a comparison of two, or a site of several.

        One study: a page. Two: a page that compares them, the ratios being first /
        second. With -o DIRECTORY: a site with an index and a page of each study.
        """,
    ),
    Subcommand(
        "verify",
        """Recomputes records and headline figures of a study from raw observations.

        Exit code 4 if a value differs or cannot be recomputed, 5 if none can.
        """,
    ),
    Subcommand(
        "doctor",
        """Checks whether this machine can be timed, and says what to do.

        Looks for neighbours, throttling, swap and settings, measures what a core does
        when all are busy, and what interval a default sweep could give. Takes about 15
        s and the interleaved measurement. Exit code 6 if timings would be unusable.
        """,
    ),
    Subcommand(
        "gate",
        "Judges whether this tree is worse than a baseline; run it again to resume.",
    ),
    click.Group(
        "launch",
        help="Writes what starts a program on a cluster; submits nothing.",
        commands=[
            Subcommand(
                "render",
                "Writes the files that start COMMAND on a cluster; prints their names.",
            )
        ],
    ),
)
"""In the order in which a user needs them."""

command_line = _Group(
    help="Measures how a training step scales over replicas, and records the evidence.",
    commands=_SUBCOMMANDS,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Print the version and exit.",
        )
    ],
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 ok, 1 regression, 2 usage, 3 inconclusive, 4 some trials failed,"
        " 5 nothing measured, 6 machine unfit, 70 internal error, 130 interrupted (run"
        " the same command to resume)."
    ),
)
"""The click group of all subcommands, for tools that document or complete them."""


def main(
    argv: Sequence[str] | None = None, *, run_overrides: Mapping[str, Any] | None = None
) -> int:
    """Runs a command line in this process, as ``python -m harness`` does.

    Args:
        argv: The subcommand and its arguments; those of this process by default.
        run_overrides: What takes the place of a part of a run, by name: a field of
            ``RunSettings``, such as ``topology`` (a ``CpuTopology``), ``probe`` (asks
            TensorFlow for its GPUs), ``harness_command`` (what a job starts), or
            ``source_root`` (the checkout of the harness whose revisions a gate finds).

    Returns:
        The exit code, one of ``ExitCode``. Errors are one line on stderr; none is
        raised.
    """
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        check_arguments(arguments)
        is_completing = COMPLETION in os.environ
        if not arguments and not is_completing:
            # Code 0 would tell a script that something was done.
            context = click.Context(command_line, info_name="python -m harness")
            click.echo(command_line.get_help(context))
            return ExitCode.USAGE
        code = command_line.main(
            arguments,
            prog_name=SCRIPT if is_completing else "python -m harness",
            complete_var=COMPLETION,
            standalone_mode=False,
            obj=run_overrides or {},
        )
    except (KeyboardInterrupt, click.Abort, Interrupted):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()  # the reader has closed it, as in `... | head`
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - Python's own code 1 would be a verdict
        message = _user_message(error)
        if _is_output_full(error):
            _forget_stdout()
        if message is None:
            import traceback

            traceback.print_exception(error)
            click.echo(
                "error: internal error; finished trials are kept, "
                "run the same command to resume",
                err=True,
            )
            return ExitCode.INTERNAL_FAULT
        click.echo(f"error: {one_line(message)}", err=True)
        is_unfit = isinstance(error, UnfitMachineError)
        return ExitCode.UNFIT if is_unfit else ExitCode.USAGE
    return int(code or ExitCode.OK)


def _forget_stdout() -> None:
    """Python flushes stdout once more at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _user_message(error: Exception) -> str | None:
    """Returns the message for an error that the user can fix; None for any other."""
    if isinstance(error, click.ClickException):
        see = ""
        if isinstance(error, click.UsageError):
            path = error.ctx.command_path if error.ctx else "python -m harness"
            see = f" (see {path} --help)"
        return error.format_message() + see
    from results.errors import ResultsError

    if isinstance(error, (HarnessError, ResultsError)):
        return str(error)
    if _is_out_of_memory(error):
        return OUT_OF_MEMORY
    if isinstance(error, OSError):
        name, why = error.filename, error.strerror
        if _is_output_full(error):
            return f"cannot write the output: {why}; free space, or redirect it"
        if name is not None and error.errno in _REFUSALS:
            return (
                f"cannot use {str(name)!r}: {why}; choose another path, or fix this one"
            )
    return None


def _is_output_full(error: Exception) -> bool:
    """Whether stdout has no space, or a disk that fails: no path is known."""
    full = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
    return isinstance(error, OSError) and not error.filename and error.errno in full


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, whatever a library makes of it."""
    for cause in causes(error):
        is_said = isinstance(cause, RuntimeError) and "out of memory" in str(cause)
        if isinstance(cause, MemoryError) or is_said:
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return cause.filename is None
    return False

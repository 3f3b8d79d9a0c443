"""``harness/README.md`` and the command line say the same."""

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from harness import ExitCode, command_line

_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def section(document, title):
    match = re.search(
        rf"^(#+) {re.escape(title)}\n(?P<body>.*?)(?=^#{{1,3}} |\Z)",
        document,
        re.MULTILINE | re.DOTALL,
    )
    assert match is not None, f"no section {title!r}"
    return match["body"]


def options_in(text):
    """Returns the options that a document names in backquotes or first columns."""
    quoted = "\n".join(re.findall(r"`([^`\n]+)`", text))
    return set(_OPTION.findall(quoted))


def options_of(subcommand):
    command = command_line.commands[subcommand]
    parts = command.commands.values() if isinstance(command, click.Group) else ()
    return {
        option
        for parameter in (*command.params, *(p for part in parts for p in part.params))
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.fixture(scope="module")
def document():
    return (ROOT / "harness" / "README.md").read_text(encoding="utf-8")


def test_every_verb_has_a_section_with_its_own_options(document):
    """In the order of the help."""
    titles = re.findall(r"^### (\w+)$", document, re.MULTILINE)

    assert list(command_line.commands) == titles
    for subcommand in command_line.commands:
        text = section(document, subcommand)
        # A subcommand that refers to another one may say what it leaves out.
        assert set() == options_in(text) - options_of(subcommand) - {"-h", "--help"}


def test_the_page_of_options_is_the_help_of_every_subcommand():
    """A reader need not ask the help which formats, modes or devices there are."""
    hooks = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))
    page = hooks["reference_pages"]()["reference/options.md"]

    for subcommand in command_line.commands:
        assert f"## {subcommand}" in page
        assert options_of(subcommand) <= {*_OPTION.findall(page)}
    assert "--device [cpu|gpu]" in page


def test_the_exit_codes_are_the_documented_ones(document):
    rows = re.findall(r"^\| (\d+) \|", section(document, "Exit codes"), re.MULTILINE)

    assert {*ExitCode} == {int(row) for row in rows}


ROOT = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(
    r"^ *(?:\$ )?(?:\.venv/bin/)?python -m harness +(?P<arguments>.+)$", re.MULTILINE
)
FOLDERS = ("docs", "harness", "replicator", "reports", "results", "workloads")
COMMANDS = sorted(
    {
        match["arguments"]
        for path in (
            *ROOT.glob("*.md"),
            *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")),
        )
        # Its commands need what only a copy of the project has.
        if path.name != "launcher.md"
        for match in _COMMAND.finditer(
            re.sub(r"\\\n *", "", path.read_text(encoding="utf-8"))
        )
    }
)


def test_the_commands_of_the_documents_parse():
    """Subcommand, options and values are known; nothing is run."""
    assert len(COMMANDS) > 20
    for arguments in COMMANDS:
        subcommand, *rest = shlex.split(arguments, comments=True)
        command = command_line.commands[subcommand]
        if isinstance(command, click.Group):
            subcommand, *rest = rest
            command = command.commands[subcommand]

        assert command.make_context(subcommand, rest).params, arguments

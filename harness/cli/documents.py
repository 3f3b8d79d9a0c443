"""What is generated from the declared options: ``python -m harness.cli.documents``.

The JSON Schema of study files; and, for the documentation site, a page of all options.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from harness.cli.main import cli
from harness.cli.verb import DeclaredOption
from harness.cli.verbs.sweep_verb import RunRequest
from harness.options.option import SCHEMA_NAME, render_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMA: Final = ROOT / "docs" / "schema" / SCHEMA_NAME
SWEEP: Final = cli.commands["sweep"]


def options_of(verb: click.Command) -> str:
    """Returns the options of a verb as a list; those of ``sweep`` by name only."""
    known = set() if verb.name == "sweep" else {item for *_, item in _items(SWEEP)}
    groups: dict[str, list[str]] = {}
    shared: dict[str, None] = {}
    for group, name, item in _items(verb):
        if item in known:
            shared[f"`{name}`"] = None
        else:
            groups.setdefault(group, []).append(item)
    parts = []
    for group, items in groups.items():
        title = [f"*{group}*", ""] if len(groups) > 1 and group else []
        parts.append("\n".join((*title, *items)))
    if shared:
        parts.append(f"As for [`sweep`](#sweep): {', '.join(shared)}.")
    return "\n\n".join(parts) + "\n"


def _items(verb: click.Command) -> Iterator[tuple[str, str, str]]:
    """Yields each option of a verb: the title of its group, its name, its item."""
    for param in verb.params:
        if isinstance(param, DeclaredOption):
            for group, own in param.shown.items():
                yield group, own.opts[0], _item(own)


def _item(option: DeclaredOption) -> str:
    of = option.declared
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    metavar = "" if of.kind.choices else of.metavar
    text = " ".join(of.help.split()).rstrip(".")
    values = [f"`{value}`" for value in of.kind.choices]
    if not all(value in text for value in values):  # the help names only some
        text = f"{text} ({', '.join(values)})"
    default = "required" if of.is_required else of.default_text
    if default.startswith("required"):
        text += f". {default.capitalize()}"
    elif default not in {"", "none"}:
        text += f". Default: {default}"
    return f"- {f'{names} {metavar}'.strip()}: {text}"


def page() -> str:
    """Returns the page of all options for the site, a section per subcommand."""
    parts = ["# Options\n\n`--help` of each subcommand prints the same.\n"]
    for name, command in cli.commands.items():
        verbs = (
            command.commands if isinstance(command, click.Group) else {name: command}
        )
        for part, verb in verbs.items():
            title = name if part == name else f"{name} {part}"
            parts.append(f"## {title}\n\n{options_of(verb)}")
    return "\n".join(parts)


def main(arguments: Sequence[str] = ()) -> int:
    """Writes the schema; returns 2 if it is called with arguments."""
    if arguments:
        sys.stderr.write("error: usage: python -m harness.cli.documents\n")
        return 2
    SCHEMA.write_text(render_schema(RunRequest), encoding="ascii", newline="\n")
    sys.stdout.write(f"{SCHEMA}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

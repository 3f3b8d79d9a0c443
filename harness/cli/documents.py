"""What is generated from declarations.

``python -m harness.cli.documents FOLDER`` writes the JSON Schemas of study files and
records; the documentation site has a page of all options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from harness.cli.main import command_line
from harness.cli.subcommands.sweep_command import RunRequest
from harness.options.option import SCHEMA_NAME, render_schema
from results.records import schema


def page() -> str:
    helps = _helps(command_line, "")
    parts = [f"## {title}\n\n```text\n{text}\n```\n" for title, text in helps]
    return "\n".join(["# Options\n", *parts])


def _helps(subcommand: click.Command, title: str) -> Iterator[tuple[str, str]]:
    if isinstance(subcommand, click.Group):
        for name, part in subcommand.commands.items():
            yield from _helps(part, f"{title} {name}".strip())
    else:
        path = f"python -m harness {title}"
        yield (
            title,
            subcommand.get_help(
                subcommand.make_context(path, [], resilient_parsing=True)
            ),
        )


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 2 if there is no such folder."""
    folder = Path(arguments[0]) if len(arguments) == 1 else None
    if folder is None or not folder.is_dir():
        sys.stderr.write("error: usage: python -m harness.cli.documents FOLDER\n")
        return 2
    texts = {f"{kind}.schema.json": schema.render(kind) for kind in schema.KINDS}
    for name, text in {SCHEMA_NAME: render_schema(RunRequest), **texts}.items():
        path = folder / name
        path.write_text(text, encoding="ascii", newline="\n")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

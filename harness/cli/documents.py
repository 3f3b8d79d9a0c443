"""What is generated from the declared options: ``python -m harness.cli.documents``.

The JSON Schema of study files; and, for the documentation site, a page of all options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from harness.cli.main import cli
from harness.cli.subcommands.sweep_command import RunRequest
from harness.options.option import SCHEMA_NAME, render_schema

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMA: Final = ROOT / "docs" / "schema" / SCHEMA_NAME


def page() -> str:
    parts = [f"## {title}\n\n```text\n{text}\n```\n" for title, text in _helps(cli, "")]
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


def main(arguments: Sequence[str] = ()) -> int:
    if arguments:
        sys.stderr.write("error: usage: python -m harness.cli.documents\n")
        return 2
    SCHEMA.write_text(render_schema(RunRequest), encoding="ascii", newline="\n")
    sys.stdout.write(f"{SCHEMA}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

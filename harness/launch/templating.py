"""Fills the templates of files for schedulers.

Values are never pasted into a file: in YAML they are quoted strings, in shell scripts
quoted words.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def render_template(path: Path, **values: Any) -> str:
    """Returns a template with its values filled in.

    Args:
      path: Its file.
      **values: By the names that the template uses; one that is missing is an error.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - no HTML; the filters below quote
    )
    environment.filters["quoted"] = _quoted
    environment.filters["word"] = lambda value: shlex.quote(str(value))
    environment.filters["words"] = shlex.join
    return environment.get_template(path.name).render(**values)


def _quoted(value: str) -> str:
    """A string in YAML, in one line and in ASCII, whatever is in it."""
    import yaml

    text = yaml.safe_dump(value, default_style='"', width=float("inf"))
    return text.strip()

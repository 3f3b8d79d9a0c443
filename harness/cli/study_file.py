"""The argument of ``sweep``: a study as a TOML file, which options override.

The file replaces the defaults of the options, so that everything behind the command
line is the same with and without a file. The recorded command is the one of flags only:
whoever repeats it needs no file.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from harness.cli.arguments import check_arguments
from harness.cli.verb import Verb, use_file
from harness.errors import ParseError
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.options.option import Option, Options

MOST_BYTES: Final = 2**20


def _read_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    assert isinstance(ctx.command, Verb)
    use_file(ctx, read(path, ctx.command.request))


STUDY_FILE: Final = click.Argument(
    ["file"],
    required=False,
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_file,
)


def read(path: Path, model: type[Options]) -> dict[str, Any]:
    """Returns the settings of a study file, by the fields of a model."""
    from harness.options.kinds import as_texts
    from harness.options.option import Contributed, keys_of, marks

    data = parse(path)
    for mark in marks(model, Contributed).values():
        chosen = data.get(mark.by)
        mark.choose([chosen] if isinstance(chosen, str) else [])
    keys = keys_of(model)
    former = dict(model.former)
    for name, (now, unit) in model.renamed.items():
        former[name[2:]] = f"use {now[2:]}, a text with a unit such as {unit}"
    for name in data:
        if name in former and name not in keys:
            raise ParseError(
                f"study file {str(path)!r}: {name} is no longer a key: {former[name]}"
            )
    settings = _checked(path, data, keys)
    for name, value in settings.items():
        if isinstance(value, dict):
            settings[name] = as_texts(value)
    # A shell's arguments are checked before; these come from a file.
    check_arguments([str(text) for value in settings.values() for text in _flat(value)])
    return settings


def parse(path: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file as they are."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    text = _text(path)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ParseError(
            f"study file {str(path)!r} is not TOML: {error}; values of text are in"
            ' double quotes, such as workload = "resnet50"'
        ) from error
    except RecursionError as error:
        raise ParseError(
            f"study file {str(path)!r} is not a study: its arrays or tables are nested"
            " too deeply; the only table is [option]"
        ) from error


def _text(path: Path) -> str:
    try:
        # A link of the user's own is followed.
        real = Path(os.path.realpath(path))
        text = untrusted.read_text(real, max_bytes=MOST_BYTES)
    except untrusted.DamagedFileError as error:
        raise ParseError(
            f"study file {str(path)!r}: {error}; give a TOML file in UTF-8, such as"
            " studies/laptop.toml"
        ) from error
    if text is None:
        raise ParseError(f"study file {str(path)!r} does not exist{_near_file(path)}")
    return text


def _near_file(path: Path) -> str:
    try:
        names = [found.name for found in path.parent.glob("*.toml")]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"; did you mean {str(path.with_name(close[0]))!r}?"
    return "; those of this project are in studies/"


def _checked(
    path: Path, data: Mapping[str, Any], keys: Mapping[str, Option]
) -> dict[str, Any]:
    import pydantic

    from harness.options.kinds import shown
    from harness.options.option import make_model

    unknown = [name for name in data if name not in keys]
    if unknown:
        raise ParseError(_unknown(path, unknown[0], data[unknown[0]], list(keys)))
    try:
        checked = make_model(keys).model_validate(data)
    except pydantic.ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise ParseError(
            f"study file {str(path)!r}: {name} is {shown(data[name])}, but must be"
            f" {keys[name].kind.must_be}"
        ) from error
    settings: dict[str, Any] = checked.model_dump(exclude_unset=True)
    for key in settings.get("options", {}):
        if not key or "=" in key:
            raise ParseError(
                f"study file {str(path)!r}: [option] has the key {key!r}; use the name"
                " of an option of the workload"
            )
    return settings


def _unknown(path: Path, name: str, value: Any, known: Sequence[str]) -> str:
    what = f"table [{name}]" if isinstance(value, dict) else f"key {name!r}"
    close = difflib.get_close_matches(name.replace("_", "-").lower(), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return (
        f"study file {str(path)!r}: unknown {what[:100]}{hint} allowed are the"
        " options of 'sweep' without their dashes, see docs/schema/study.schema.json"
    )


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)

"""The option ``--file``: a sweep as a TOML file, with flags beside it that override.

The file replaces the defaults of the options, so that everything behind the command
line is the same with and without a file. The recorded command is the one of flags only:
whoever repeats it needs no file.
"""

from __future__ import annotations

import difflib
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from harness.cli.arguments import check_arguments
from harness.errors import ParseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_BYTES: Final = 2**20
_META: Final = "harness.cli.study_file"
_NOT_RECORDED: Final = "--file"
_SHOWN: Final = 100
_GIVEN: Final = {ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP}


def _read_option(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    ctx.default_map = {**(ctx.default_map or {}), **read(path)}
    ctx.meta[_META] = path


study_file_option = click.option(
    "--file",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_option,
    help="TOML file of the study: its keys are these options without dashes, and"
    " options beside it override it.",
)


def with_those_of_file(
    ctx: click.Context, param: click.Parameter, texts: Sequence[str]
) -> tuple[str, ...]:
    """Adds KEY=VALUE of the file to those that override some of its keys."""
    assert param.name is not None
    source = ctx.get_parameter_source(param.name)
    given = tuple(texts)
    if source is not ParameterSource.COMMANDLINE or _META not in ctx.meta:
        return given
    overridden = {text.partition("=")[0] for text in given}
    of_file = (ctx.default_map or {}).get(param.name, ())
    kept = [text for text in of_file if text.partition("=")[0] not in overridden]
    return (*kept, *given)


def command(ctx: click.Context) -> tuple[str, ...]:
    """Returns the command of a sweep as flags only; a file is written out."""
    if _META not in ctx.meta:
        return ("python", "-m", "harness", *sys.argv[1:])
    words = ["python", "-m", "harness", str(ctx.info_name)]
    for option in ctx.command.params:
        assert option.name is not None
        is_given = ctx.get_parameter_source(option.name) in _GIVEN
        if isinstance(option, click.Option) and is_given:
            words += _words(option, ctx.params.get(option.name))
    return tuple(words)


def _words(option: click.Option, value: Any) -> list[str]:
    name = max(option.opts, key=len)
    if value is None or name == _NOT_RECORDED:
        return []
    if option.is_flag:
        return [name] if value else list(option.secondary_opts)
    values = value if option.multiple else [value]
    return [word for one in values for word in (name, str(one))]


def read(path: Path) -> dict[str, Any]:
    """Returns the settings of a study file, by the parameters of ``sweep``.

    Raises:
      ParseError: The file is missing or is not a study file; says where and why.
    """
    from harness.cli import study_keys

    data = parse(path)
    known = study_keys.known_keys()
    settings = _checked(path, data, known)
    # A shell's arguments are checked before; these come from a file.
    check_arguments([str(text) for value in settings.values() for text in _flat(value)])
    return settings


def parse(path: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file as they are.

    Raises:
      ParseError: The file is missing or is not TOML; says where and why.
    """
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
        facts = path.stat()
        # Reading a pipe would block, and a device has no end.
        if not stat.S_ISREG(facts.st_mode):
            raise ParseError(
                f"study file {str(path)!r} is not a regular file; give a TOML file,"
                " such as studies/laptop.toml"
            )
        if facts.st_size > MOST_BYTES:
            raise ParseError(
                f"study file {str(path)!r} has {facts.st_size} bytes; allowed are at"
                f" most {MOST_BYTES}"
            )
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise ParseError(
            f"study file {str(path)!r} does not exist{_near_file(path)}"
        ) from None
    except UnicodeDecodeError as error:
        raise ParseError(
            f"study file {str(path)!r} is not UTF-8: {error.reason} at byte"
            f" {error.start}; save it as UTF-8"
        ) from error
    except ValueError as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(
            f"study file {str(path)!r} cannot be a path: {error}"
        ) from error


def _near_file(path: Path) -> str:
    try:
        names = [found.name for found in path.parent.glob("*.toml")]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"; did you mean {str(path.with_name(close[0]))!r}?"
    return "; those of this project are in studies/"


def _checked(path: Path, data: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    import pydantic

    from harness.cli import study_keys

    unknown = [name for name in data if name not in known]
    if unknown:
        raise ParseError(_unknown(path, unknown[0], data[unknown[0]], list(known)))
    try:
        checked = study_keys.make_model(known).model_validate(data)
    except pydantic.ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise ParseError(
            f"study file {str(path)!r}: {name} is {_shown(data[name])}, but must be"
            f" {known[name].must_be}"
        ) from error
    settings = checked.model_dump(exclude_unset=True)
    for key in settings.get("options", {}):
        if not key or "=" in key:
            raise ParseError(
                f"study file {str(path)!r}: [option] has the key {key!r}; use the name"
                " of an option of the workload"
            )
    return {name: _as_argument(value) for name, value in settings.items()}


def _unknown(path: Path, name: str, value: Any, known: Sequence[str]) -> str:
    what = f"table [{name}]" if isinstance(value, dict) else f"key {name!r}"
    close = difflib.get_close_matches(name.replace("_", "-").lower(), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return (
        f"study file {str(path)!r}: unknown {what[:_SHOWN]}{hint} allowed are the"
        " options of 'sweep' without their dashes, see docs/schema/study.schema.json"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _as_argument(value: Any) -> Any:
    """Returns a value as the command line has it: lists and KEY=VALUE are texts."""
    if isinstance(value, dict):
        return tuple(f"{key}={_as_text(of)}" for key, of in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, (bool, int, float)) else str(value)


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)

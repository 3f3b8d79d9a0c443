"""The keys of a study file: the options of ``sweep``, declared once, as click has them.

A key is the long option without its dashes. The model that checks a file, and the
JSON Schema that editors read, are made of the declared options, so that a new option
is a key as well: ``python -m harness.cli.study_keys docs/schema`` writes the schema.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click

from harness.cli.sweep_options import CommaSeparated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pydantic

SCHEMA_NAME: Final = "study.schema.json"
NOT_KEYS: Final = frozenset({"--file", "--json", "--dry-run", "--help"})
"""Options of one call: what it prints, and whether it measures."""
_TITLE: Final = "StudyFile"
_DESCRIPTION: Final = (
    "A sweep as a TOML file: each key is an option of 'python -m harness sweep' without"
    " its dashes; 'sweep --file' and 'plan --file' read it."
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key.

    Attributes:
      name: As in the file.
      option: The option that it stands for.
      annotation: Its type, for pydantic.
      must_be: Its type in words, for messages.
    """

    name: str
    option: click.Option
    annotation: Any
    must_be: str

    @property
    def parameter(self) -> str:
        """The name of the option's value in click."""
        assert self.option.name is not None
        return self.option.name


def long_name(option: click.Option) -> str:
    """Returns the option as users write it, such as ``--match``."""
    return max(option.opts, key=len)


def options_of_sweep() -> list[click.Option]:
    """Returns the options of ``sweep``, in the order of its help."""
    from harness.cli.main import sweep

    return [of for of in sweep.params if isinstance(of, click.Option)]


def known_keys() -> dict[str, Key]:
    """Returns every key by its name."""
    found = {}
    for option in options_of_sweep():
        if long_name(option) in NOT_KEYS:
            continue
        annotation, must_be = _kind(option)
        name = long_name(option).removeprefix("--")
        found[name] = Key(
            name=name, option=option, annotation=annotation, must_be=must_be
        )
    return found


def make_model(of: Mapping[str, Key]) -> type[pydantic.BaseModel]:
    """Returns the model that checks a study file: closed, and without conversions."""
    import pydantic

    fields: dict[str, Any] = {
        key.parameter: (
            key.annotation,
            pydantic.Field(default=None, alias=key.name, description=_help(key.option)),
        )
        for key in of.values()
    }
    model: type[pydantic.BaseModel] = pydantic.create_model(
        _TITLE,
        __config__=pydantic.ConfigDict(
            extra="forbid", strict=True, frozen=True, allow_inf_nan=False
        ),
        __doc__=_DESCRIPTION,
        **fields,
    )
    return model


def render_schema() -> str:
    """Returns the JSON Schema of a study file, as it is published."""
    from results.records.schema import DIALECT

    of = known_keys()
    schema = {"$schema": DIALECT, **make_model(of).model_json_schema()}
    for name, field in schema["properties"].items():
        # None says that a key may be left out; what holds then is the option's.
        field.pop("default", None)
        field.pop("title", None)
        default = _default(of[name].option)
        if default is not None:
            field["default"] = default
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def _help(option: click.Option) -> str:
    return " ".join((option.help or "").split())


def _default(option: click.Option) -> bool | float | str | None:
    """Returns what holds without the option, where click knows it."""
    default = option.default
    if option.show_default and isinstance(default, Path):
        return str(default)
    if option.show_default and isinstance(default, (bool, int, float, str)):
        return default
    return None


def _kind(option: click.Option) -> tuple[Any, str]:
    """Returns the type of an option, and the same in words.

    Raises:
      TypeError: No key has the type; add it to ``_KINDS``.
    """
    if option.is_flag:
        return bool, "true or false"
    if option.multiple:
        return dict[str, bool | int | float | str], (
            f"a table of texts, numbers, true and false: [{long_name(option)[2:]}] and"
            ' lines such as jit = "step" below it'
        )
    for kind, describe in _KINDS:
        if isinstance(option.type, kind):
            return describe(option.type)
    raise TypeError(f"{long_name(option)} has type {option.type!r}, which no key has")


def _choice(kind: click.Choice[str]) -> tuple[Any, str]:
    choices = tuple(kind.choices)
    return Literal.__getitem__(choices), f"one of {', '.join(map(repr, choices))}"


def _list(kind: CommaSeparated) -> tuple[Any, str]:
    if not kind.is_of_counts:
        return str | list[str], "text, or an array of texts"
    return (
        int | str | list[int | str],
        'an integer, an array of integers, or text such as "1..8"',
    )


def _integer(kind: click.IntRange) -> tuple[Any, str]:
    import pydantic

    bounds = pydantic.Field(ge=kind.min, le=kind.max)
    return Annotated[int, bounds], f"an integer{_range(kind)}"


def _number(kind: click.FloatRange) -> tuple[Any, str]:
    import pydantic

    bounds = pydantic.Field(
        gt=kind.min if kind.min_open else None,
        ge=None if kind.min_open else kind.min,
        le=kind.max,
    )
    return Annotated[float, bounds], f"a number{_range(kind)}"


# A type before those that it derives from.
_KINDS: Final[tuple[tuple[type, Callable[[Any], tuple[Any, str]]], ...]] = (
    (CommaSeparated, _list),
    (click.Choice, _choice),
    (click.IntRange, _integer),
    (click.FloatRange, _number),
    (click.types.IntParamType, lambda _: (int, "an integer")),
    (click.types.FloatParamType, lambda _: (float, "a number")),
    (click.types.StringParamType, lambda _: (str, "text")),
    (click.Path, lambda _: (str, "text")),
)


def _range(kind: click.IntRange | click.FloatRange) -> str:
    """Returns the bounds of a range in words; empty without any."""
    low = ""
    if kind.min is not None:
        low = f" above {kind.min:g}" if kind.min_open else f" from {kind.min}"
    if kind.max is None:
        return f"{low} on" if low else ""
    return f"{low} to {kind.max}" if low else f" up to {kind.max}"


def main(arguments: Sequence[str]) -> int:
    """Writes the schema into a folder; returns 2 if it is not called with one."""
    if len(arguments) != 1:
        sys.stderr.write("error: usage: python -m harness.cli.study_keys FOLDER\n")
        return 2
    path = Path(arguments[0]) / SCHEMA_NAME
    path.write_text(render_schema(), encoding="ascii", newline="\n")
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A subcommand whose options are declared by a model; click shows and reads them.

The module of a subcommand has the model of its options, such as ``ReportRequest``, and
``run``, which takes one and returns the exit code. Both are imported when the
subcommand is used, so that the list of all subcommands needs neither Pydantic nor
anything of the subcommand.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import difflib
import functools
import importlib
import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from harness.cli.arguments import check_arguments
from harness.errors import ParseError, PlanError
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from harness.options.option import Option, Options

_GIVEN: Final = "harness.cli.subcommand.given"
"""Key of what was given for each option, as it was written, by parameter."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The call of a subcommand, besides what it requests."""

    # What to record: the command with all that a study file set.
    command: tuple[str, ...]
    overrides: Mapping[str, Any]  # Replaces fields of ``RunSettings``; for tests.


_OTHER: Final = "Options"


class _Declared(click.Parameter):
    """A parameter whose declaration reads and completes its value."""

    declared: Option
    owners: list[str]  # Such as ``--launcher slurm``; empty for all.

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Returns the value, or raises ``ParseError``; ``value`` may be TOML."""
        del ctx
        kind, name = self.declared.kind, self.declared.spelling
        if kind.is_multiple and value:
            return kind.read(list(value), name)
        if kind.is_multiple:
            return () if self.required else None
        if value is None or (self.owners and not kind.is_flag):
            return value  # the owner that is chosen reads it
        if isinstance(value, list):
            value = ",".join(map(str, value))
        return kind.read(value if kind.is_flag else str(value), name)


def _settings(of: Option) -> dict[str, Any]:
    """Returns what click has of an option or argument."""

    def complete(ctx: click.Context, _: click.Parameter, text: str) -> list[str]:
        if of.complete is not None:
            return of.complete(ctx.params, text)
        return [one for one in of.kind.choices if one.startswith(text)]

    return {"required": of.is_required, "shell_complete": complete}


class DeclaredArgument(_Declared, click.Argument):
    def __init__(self, of: Option) -> None:
        self.declared, self.owners = of, []
        super().__init__(
            [of.field],
            metavar=None if of.metavar == of.kind.metavar else of.metavar,
            nargs=-1 if of.kind.is_multiple else 1,
            **_settings(of),
        )


class DeclaredOption(_Declared, click.Option):
    def __init__(self, of: Option) -> None:
        self.declared, self.owners = of, []
        kind, names = of.kind, [of.spelling]
        if kind.is_flag and of.value is not False:
            names = [f"{of.spelling}/--no-{of.name}"]
        default = f"  [default: {of.default_text}]" if of.default_text else ""
        short = [name for name in of.also if not name.startswith("--")]
        long = [name for name in of.also if name.startswith("--")]
        settings = _settings(of)
        if not of.is_required:  # what is not given is neither False nor empty
            settings["default"] = None
        super().__init__(
            [*short, *names, *long, of.field],
            help=of.plain_help + default,
            # Not False: click would take a last option without a value as given.
            is_flag=kind.is_flag or None,
            multiple=kind.is_multiple,
            metavar=of.metavar or None,
            **settings,
        )

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Notes what was given, as it was written."""
        value, source = super().consume_value(ctx, opts)
        if source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP):
            of_file = (ctx.default_map or {}).get(str(self.name))
            if self.multiple and source is ParameterSource.COMMANDLINE and of_file:
                overridden = {text.partition("=")[0] for text in value}
                kept = [t for t in of_file if t.partition("=")[0] not in overridden]
                value = (*kept, *value)
            ctx.meta.setdefault(_GIVEN, {})[self.name] = value
        return value, source


class Subcommand(click.Command):
    def __init__(
        self,
        name: str,
        text: str,
        *,
        model: str = "",
        arguments: Sequence[click.Parameter] = (),
    ) -> None:
        super().__init__(name, help=text)
        self._module = f"harness.cli.subcommands.{name}_command"
        self._model = model or f"{name.capitalize()}Request"
        self._arguments = arguments

    @functools.cached_property
    def request(self) -> type[Options]:
        module = importlib.import_module(self._module)
        model: type[Options] = getattr(module, self._model)
        return model

    @property
    def params(self) -> list[click.Parameter]:
        return self._params

    @params.setter
    def params(self, _: list[click.Parameter]) -> None:
        """Ignores that click sets an empty list."""

    @functools.cached_property
    def _params(self) -> list[click.Parameter]:
        from harness.options import option

        found: list[click.Parameter] = [*self._arguments]
        found += [
            DeclaredArgument(of) if of.is_argument else DeclaredOption(of)
            for of in option.declared(self.request)
        ]
        owned: dict[str, DeclaredOption] = {}
        for mark in option.contributed(self.request).values():
            for owner, model in mark.models().items():
                for of in option.declared(model):
                    own = owned.setdefault(of.name, DeclaredOption(of))
                    own.owners.append(f"--{mark.by} {owner}")
        return [*found, *owned.values()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the options; what a plugin contributes is known before."""
        from harness.options import option

        args = list(_renamed(args, self.request.renamed))
        if not ctx.resilient_parsing:
            for mark in option.contributed(self.request).values():
                if mark.choose(_values_of(f"--{mark.by}", args)):
                    self.__dict__.pop("_params", None)
            try:
                self._check_repeated(ctx, args)
            except click.NoSuchOption as error:
                name = error.option_name
                instead = self._instead_of(name)
                if instead is None:
                    raise
                raise PlanError(f"{name} is no longer an option: {instead}") from error
        return super().parse_args(ctx, args)

    def _instead_of(self, name: str) -> str | None:
        """Returns what is used in place of an option of earlier versions."""
        return self.request.former.get(name.removeprefix("--").removeprefix("no-"))

    def _check_repeated(self, ctx: click.Context, args: Sequence[str]) -> None:
        """Raises if an option is given twice of which only one would count."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        counts = collections.Counter(
            param
            for param in order
            if isinstance(param, click.Option)
            and not (param.multiple or param.opts[-1] == "--help")
        )
        for param, number in counts.items():
            if number > 1:
                name = next(name for name in param.opts if name.startswith("--"))
                raise PlanError(
                    f"{name} is given {number} times, and only one would count; give it"
                    " once"
                )

    def invoke(self, ctx: click.Context) -> Any:
        from harness.options import option

        call = Call(command=command_of(ctx), overrides=ctx.obj or {})
        # What was not given has the default of its field.
        given = {name: v for name, v in ctx.params.items() if v is not None}
        fields = self.request.model_fields
        for field, mark in option.contributed(self.request).items():
            chosen = given.get(mark.by, fields[mark.by].default)
            given[field] = self._contributed(mark, chosen, given)
        request = self.request(**{k: v for k, v in given.items() if k in fields})
        return importlib.import_module(self._module).run(request, call)

    def _contributed(self, mark: Any, chosen: str, given: Mapping[str, Any]) -> Options:
        """Returns the options of what was chosen."""
        from harness.options import option

        model = mark.models().get(chosen)
        own = {} if model is None else {of.field: of for of in option.declared(model)}
        values = {}
        for param in self.params:
            if not isinstance(param, DeclaredOption) or not param.owners:
                continue
            name, spelling = str(param.name), param.declared.spelling
            if name not in given:
                continue
            if name not in own:
                owners = " or ".join(param.owners)
                value = "" if param.is_flag else f" {given[name]}"
                instead = self._instead_of(spelling)
                raise PlanError(
                    f"{spelling}{value} has no effect with --{mark.by} {chosen}; "
                    + (instead or f"add {owners}, or leave {spelling} out")
                )
            kind, value = own[name].kind, given[name]
            values[name] = value if kind.is_flag else kind.read(value, spelling)
        return option.NO_OPTIONS if model is None else model(**values)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            group, record = _OTHER, param.get_help_record(ctx)
            if isinstance(param, DeclaredOption):
                group = param.declared.group
                if param.owners:
                    group = f"Options of {' or '.join(param.owners)}"
            if record is not None:
                rows.setdefault(group, []).append(record)
        rows[_OTHER] = rows.pop(_OTHER)  # last: --help is among them
        for group, records in rows.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _renamed(
    args: Iterable[str], renamed: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    """Yields what recorded commands of earlier versions say as it is written now."""
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name in renamed:
            now, unit = renamed[name]
            value = value if equals else next(words, "")
            yield f"{now}={value}{unit * value[-1:].isdecimal()}"
            continue
        yield word
        if word == "--":
            yield from words


def _values_of(name: str, args: Sequence[str]) -> list[str]:
    """Returns what an option is given, without reading the others."""
    own = args[: args.index("--")] if "--" in args else args
    joined = [word.partition("=")[2] for word in own if word.startswith(f"{name}=")]
    return joined + [value for word, value in itertools.pairwise(own) if word == name]


def command_of(ctx: click.Context) -> tuple[str, ...]:
    """Returns the command as options only; what a study file set is written out."""
    if ctx.default_map is None:  # no study file
        return ("python", "-m", "harness", *sys.argv[1:])
    words = ["python", "-m", "harness", str(ctx.info_name)]
    given = ctx.meta.get(_GIVEN, {})
    for param in ctx.command.params:
        if not isinstance(param, DeclaredOption) or param.name not in given:
            continue
        name, value = param.declared.spelling, given[param.name]
        if param.is_flag:
            words += [name] if value else param.secondary_opts
            continue
        for of in value if param.multiple else [value]:
            words += [name, ",".join(map(str, of)) if isinstance(of, list) else str(of)]
    return tuple(words)


# The argument of ``sweep``: a study as a TOML file, which options override. It replaces
# the defaults of the options, so that everything behind the command line is the same
# with and without a file. The recorded command is the one of flags only: whoever
# repeats it needs no file.

MOST_BYTES: Final = 2**20


def _read_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    assert isinstance(ctx.command, Subcommand)
    ctx.default_map = read_file(path, ctx.command.request)


STUDY_FILE: Final = click.Argument(
    ["file"],
    required=False,
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_file,
)


def read_file(path: Path, model: type[Options]) -> dict[str, Any]:
    """Returns the settings of a study file, by the fields of a model."""
    from harness.options.option import contributed, keys_of

    data = _parse(path)
    for mark in contributed(model).values():
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
            settings[name] = tuple(
                f"{key}={str(of).lower() if isinstance(of, bool) else of}"
                for key, of in value.items()
            )
    # A shell's arguments are checked before; these come from a file.
    for value in settings.values():
        flat = value if isinstance(value, (tuple, list)) else [value]
        check_arguments([*map(str, flat)])
    return settings


def _parse(path: Path) -> dict[str, Any]:
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
    if text is not None:
        return text
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [found.name for found in path.parent.glob("*.toml")]
    hint = "; those of this project are in studies/"
    for close in difflib.get_close_matches(path.name, names, n=1):
        hint = f"; did you mean {str(path.with_name(close))!r}?"
    raise ParseError(f"study file {str(path)!r} does not exist{hint}")


def _checked(
    path: Path, data: Mapping[str, Any], keys: Mapping[str, Option]
) -> dict[str, Any]:
    import pydantic

    from harness.options.kinds import shown
    from harness.options.option import make_model

    for name in (name for name in data if name not in keys):
        is_table = isinstance(data[name], dict)
        what = f"table [{name}]" if is_table else f"key {name!r}"
        wanted = name.replace("_", "-").lower()
        close = difflib.get_close_matches(wanted, list(keys), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise ParseError(
            f"study file {str(path)!r}: unknown {what[:100]}{hint} allowed are the"
            " options of 'sweep' without their dashes, see"
            " docs/schema/study.schema.json"
        )
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

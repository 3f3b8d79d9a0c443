"""A subcommand whose options are declared by a model; click shows and reads them.

The module of a subcommand has the model of its options, such as ``ReportRequest``, and
``run``, which takes one and returns the exit code. Both are imported when the
subcommand is used, so that the list of all subcommands needs neither Pydantic nor
anything of the subcommand.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from harness.errors import ParseError, PlanError
from results.records.texts import printable
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from harness.options.option import Option, Options

MOST_BYTES: Final = 2**20  # Of a study file.
_OTHER: Final = "Options"


# Names, paths and values are checked at once, so that no later code receives a string
# that cannot be stored in a file or a record or shown on a terminal.

MAX_LENGTH = 65_536
"""Characters of one argument; 65,536 replica counts as a range take ten."""
MAX_MESSAGE = 1_000
_UNUSABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def check_arguments(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if len(argument) > MAX_LENGTH:
            raise ParseError(
                f"argument {argument[:40]!r}... has {len(argument)} characters; allowed"
                f" are at most {MAX_LENGTH}"
            )
        unusable = _UNUSABLE.search(argument)
        if unusable is not None:
            what = (
                "is not UTF-8" if unusable[0] >= "\ud800" else "is a control character"
            )
            raise ParseError(
                f"argument {argument[:200]!r}: {unusable[0]!r} {what}; use printable"
                " characters only, and rename a file with such a name"
            )


def one_line(message: str) -> str:
    """Returns a message as one printable line; a very long one is cut in the middle."""
    text = printable(" ".join(message.split()))
    if len(text) <= MAX_MESSAGE:
        return text
    half = MAX_MESSAGE // 2
    return f"{text[:half]} ... {text[-half:]}"


PIPE_WIDTH: Final = 140  # Of a pipe, which has none: no cell is wrapped.


def console(**settings: Any) -> Console:
    from rich.console import Console

    settings.setdefault("width", None if sys.stdout.isatty() else PIPE_WIDTH)
    return Console(highlight=False, **settings)


def _parameter(each: Option) -> click.Parameter:
    """Returns what click shows and completes; ``invoke`` reads its texts."""

    def complete(ctx: click.Context, _: click.Parameter, text: str) -> list[str]:
        if each.complete is not None:
            return each.complete(ctx.params, text)
        return [one for one in each.kind.choices if one.startswith(text)]

    kind = each.kind
    common: dict[str, Any] = {
        "type": click.UNPROCESSED,
        "required": each.is_required,
        "shell_complete": complete,
    }
    if each.is_argument:
        metavar = None if each.metavar == kind.metavar else each.metavar
        nargs = -1 if kind.is_multiple else 1
        return click.Argument([each.field], metavar=metavar, nargs=nargs, **common)
    name = each.spelling
    if kind.is_flag:
        name += f"/--no-{each.name}" * (each.value is not False)
        # Not False: click would take a last option without a value as given.
        common |= {"is_flag": True, "type": click.BOOL}
    # All can be repeated for click, so that nothing which is given is lost.
    return click.Option(
        [*filter(None, [each.short]), name, each.field],
        help=each.described(),
        multiple=True,
        metavar=each.metavar or None,
        **common,
    )


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
        del self.params  # an empty list, in place of the property below
        self._module = f"harness.cli.subcommands.{name}_command"
        self._model = model or f"{name.capitalize()}Request"
        self._arguments = arguments

    @functools.cached_property
    def request(self) -> type[Options]:
        module = importlib.import_module(self._module)
        model: type[Options] = getattr(module, self._model)
        return model

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """What the command line takes, by field; all settings are one."""
        from harness.options import option

        options = {each.field: each for each in option.declared(self.request)}
        options = {k: each for k, each in options.items() if not each.is_setting}
        if keys := option.settings(self.request):
            options[option.SET] = option.set_option(keys)
        return options

    @functools.cached_property
    def params(self) -> list[click.Parameter]:  # type: ignore[override]  # it is set once
        return [*self._arguments, *map(_parameter, self.options.values())]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*_renamed(args, self.request.renamed)])
        except click.NoSuchOption as error:
            name = error.option_name
            instead = self._instead_of(name.removeprefix("--"))
            if not instead:
                raise
            raise PlanError(f"{name} is no longer an option: {instead}") from error

    def _instead_of(self, name: str) -> str:
        """Returns what is used in place of an option of earlier versions."""
        from harness.options import option

        if name in option.settings(self.request):
            return f"use --set {name}=VALUE"
        return self.request.former.get(name.removeprefix("no-"), "")

    def invoke(self, ctx: click.Context) -> Any:
        from harness.options import option

        file, command = ctx.params.pop(str(STUDY_FILE.name), None), sys.argv[1:]
        texts = self._given(ctx.params)
        if file is not None:
            texts = _with_file(Path(file), self.request, texts)
            command = [str(ctx.info_name), *_words(self.options, texts)]
            # A shell's arguments are checked before; these come from a file.
            check_arguments(command)
        settings = texts.pop(option.SET, ())
        given = {
            name: self.options[name].kind.read(text, self.options[name].spelling)
            for name, text in texts.items()
        }
        mark = option.contributed(self.request)
        if mark is None:
            given |= self._set(settings)[""]
        else:
            default = self.request.model_fields[mark.by].default
            chosen = str(given.get(mark.by, default))
            owner = f"--{mark.by} {chosen}"
            values = self._set(settings, owner)
            model = mark.models().get(chosen, option.Options)
            given |= {mark.field: model(**values[owner]), **values[""]}
        recorded = ("python", "-m", "harness", *command)
        own = {"recorded_command": recorded, "overrides": ctx.obj or {}}
        given |= {k: own[k] for k in own.keys() & self.request.model_fields.keys()}
        return importlib.import_module(self._module).run(self.request(**given))

    def _given(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what was given: one text, or all of what can be repeated."""
        given = {}
        for name, value in params.items():
            each = self.options[name]
            is_one = not (each.is_argument or each.kind.is_multiple)
            if is_one and len(value) > 1:
                raise PlanError(
                    f"{each.spelling} is given {len(value)} times, and only one would"
                    " count; give it once"
                )
            if value not in (None, ()):
                given[name] = value[0] if is_one else value
        return given

    def _set(self, texts: Sequence[str], *owners: str) -> dict[str, dict[str, Any]]:
        """Returns what ``--set`` gives each owner, by fields; "" is the subcommand."""
        from harness.catalog import look_up
        from harness.options import option

        values: dict[str, dict[str, Any]] = {owner: {} for owner in ("", *owners)}
        known = option.settings(self.request)
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals:
                raise PlanError(f"--set {text!r} is not KEY=VALUE; see --help for keys")
            named = look_up(known, name, what="key of --set")
            each = next((each for each in named if each.owner in values), None)
            if each is None:
                others = " or ".join(each.owner for each in named)
                instead = self.request.former.get(name)
                raise PlanError(
                    f"--set {text} has no effect with {owners[-1]}; "
                    + (instead or f"add {others}, or leave {name} out")
                )
            if each.field in values[each.owner]:
                raise PlanError(
                    f"--set {name} is given twice, and only one would count; give it"
                    " once"
                )
            values[each.owner][each.field] = each.kind.read(value, each.spelling)
        return values

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        from harness.options import option

        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                each = self.options.get(str(param.name))
                rows.setdefault(each.group if each else _OTHER, []).append(record)
        for name, own in option.settings(self.request).items():
            owners = " or ".join(one.owner for one in own if one.owner)
            text = own[0].described() + f"  [with {owners}]" * bool(owners)
            rows[option.SETTINGS].append((f"{name}={own[0].metavar}", text))
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


def _words(options: Mapping[str, Option], texts: Mapping[str, Any]) -> Iterator[str]:
    """Yields options with their texts, by their long names."""
    for name, value in texts.items():
        each = options[name]
        if not each.kind.is_flag:
            for text in value if each.kind.is_multiple else (value,):
                yield from (each.spelling, text)
        elif value or each.value:
            yield each.spelling if value else f"--no-{each.name}"


# The argument of ``sweep``: a study as a TOML file. It becomes texts of options, but
# for those that are given beside it, so that everything behind the command line is the
# same with and without a file. The recorded command has options only: whoever repeats
# it needs no file.

STUDY_FILE: Final = click.Argument(["file"], required=False)


def _with_file(
    path: Path, model: type[Options], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the texts of options: of a study file, and those beside it."""
    from harness.options import option

    keys, data = _read(path, model)
    texts: dict[str, Any] = {}
    for name, value in data.items():
        each, field = keys[name], keys[name].field
        if each.is_setting:
            field, pairs = option.SET, [f"{name}={_text(value)}"]
        elif isinstance(value, dict):
            pairs = [f"{key}={_text(one)}" for key, one in value.items()]
        elif each.kind.is_multiple:
            pairs = value
        else:
            texts[field] = value if each.kind.is_flag else _text(value)
            continue
        beside = {text.partition("=")[0] for text in given.get(field, ())}
        kept = [pair for pair in pairs if pair.partition("=")[0] not in beside]
        texts[field] = (*texts.get(field, ()), *kept)
    for name, value in given.items():
        is_more = isinstance(value, tuple)
        texts[name] = (*texts.get(name, ()), *value) if is_more else value
    return texts


def _text(value: object) -> str:
    """Returns a value of TOML as an option has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(
    path: Path, model: type[Options]
) -> tuple[Mapping[str, Option], dict[str, Any]]:
    """Returns the keys that a study file can have, and those that it has."""
    import pydantic

    from harness.options import option
    from harness.options.kinds import shown

    what = f"study file {str(path)!r}"
    data = _parse(path, what)
    mark = option.contributed(model)
    if mark is not None and isinstance(chosen := data.get(mark.by), str):
        mark.use(chosen)
    keys = option.keys_of(model)
    former = {**model.former} | {
        name[2:]: f"use {now[2:]}, a text with a unit such as {unit}"
        for name, (now, unit) in model.renamed.items()
    }
    for name in (name for name in data if name not in keys):
        if name in former:
            raise ParseError(f"{what}: {name} is no longer a key: {former[name]}")
        noun = f"table [{name}]" if isinstance(data[name], dict) else f"key {name!r}"
        wanted = name.replace("_", "-").lower()
        close = difflib.get_close_matches(wanted, list(keys), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise ParseError(
            f"{what}: unknown {noun[:100]}{hint} allowed are the options of 'sweep'"
            " without their dashes, see docs/schema/study.schema.json"
        )
    try:
        option.make_model(keys).model_validate(data)
    except pydantic.ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise ParseError(
            f"{what}: {name} is {shown(data[name])}, but must be"
            f" {keys[name].kind.must_be}"
        ) from error
    for key in data.get("option", {}):
        if not key or "=" in key:
            raise ParseError(
                f"{what}: [option] has the key {key!r}; use the name of an option of"
                " the workload"
            )
    return keys, data


def _parse(path: Path, what: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        # A link of the user's own is followed.
        real = Path(os.path.realpath(path))
        text = untrusted.read_text(real, max_bytes=MOST_BYTES)
    except untrusted.DamagedFileError as error:
        raise ParseError(
            f"{what}: {error}; give a TOML file in UTF-8, such as studies/laptop.toml"
        ) from error
    if text is None:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = [file.name for file in path.parent.glob("*.toml")]
        hint = "; those of this project are in studies/"
        for close in difflib.get_close_matches(path.name, names, n=1):
            hint = f"; did you mean {str(path.with_name(close))!r}?"
        raise ParseError(f"{what} does not exist{hint}")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ParseError(
            f"{what} is not TOML: {error}; values of text are in double quotes, such"
            ' as workload = "resnet50"'
        ) from error
    except RecursionError as error:
        raise ParseError(
            f"{what} is not a study: its arrays or tables are nested too deeply; the"
            " only table is [option]"
        ) from error

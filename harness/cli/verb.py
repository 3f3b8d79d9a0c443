"""A verb whose options are declared by a model; click shows and reads them.

The module of a verb has the model of its options, such as ``ReportRequest``, and
``run``, which takes one and returns the exit code. Both are imported when the verb is
used, so that the list of all verbs needs neither Pydantic nor anything of the verb.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from harness.options.option import Option, Options

_GIVEN: Final = "harness.cli.verb.given"
"""Key of what was given for each option, as it was written, by parameter."""
_OF_FILE: Final = "harness.cli.verb.file"
"""Key of what a study file gives for options that merge with those beside it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The call of a verb, besides what it requests."""

    # What to record: the command with all that a study file set.
    command: tuple[str, ...]
    overrides: Mapping[str, Any]  # Replaces fields of ``RunSettings``; for tests.


_OTHER: Final = "Options"


class _Value(click.ParamType):  # type: ignore[type-arg]  # not in click 8.1
    """A value that its declaration reads."""

    def __init__(self, of: Option) -> None:
        self.name = of.metavar
        self._of = of

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Returns the value, or raises ``ParseError``."""
        del param, ctx
        if self._of.kind.is_multiple:  # one of them; the model has all
            return value
        return self._of.kind.read(value, self._of.spelling)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offers what the declaration knows."""
        del param
        complete = self._of.complete
        found = (
            [of for of in self._of.kind.choices if of.startswith(incomplete)]
            if complete is None
            else complete(ctx.params, incomplete)
        )
        return [CompletionItem(of) for of in found]


class DeclaredOption(click.Option):
    """An option of a model."""

    def __init__(self, of: Option, *, owners: Sequence[str] = ()) -> None:
        self.declared = of
        # What the help shows below each heading; each launcher has words of its own.
        self.shown: dict[str, DeclaredOption] = {of.group: self}
        self.owners = list(owners)  # such as launchers; empty for all
        kind, names = of.kind, [of.spelling]
        settings: dict[str, Any] = {}
        if kind.is_flag and of.value is not False:
            names = [f"{of.spelling}/--no-{of.name}"]
        self.is_deferred = bool(owners) and not kind.is_flag
        default = of.default_text.replace("`", "")
        short = [name for name in of.also if not name.startswith("--")]
        long = [name for name in of.also if name.startswith("--")]
        if not of.is_required:  # what is not given is neither False nor empty
            settings["default"] = None
        super().__init__(
            [*short, *names, *long, of.field],
            help=of.plain_help + (f"  [default: {default}]" if default else ""),
            required=of.is_required,
            # Not False: click would take a last option without a value as given.
            is_flag=kind.is_flag or None,
            multiple=kind.is_multiple,
            type=_type_of(of, is_text=self.is_deferred),
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

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Reads what was given; all texts of one that can be repeated together."""
        if self.multiple:
            kind, name = self.declared.kind, self.declared.spelling
            return kind.read(list(value), name) if value else None
        return super().type_cast_value(ctx, value)


def _type_of(of: Option, *, is_text: bool) -> Any:
    if of.kind.is_flag:
        return None
    return click.STRING if is_text else _Value(of)


class Verb(click.Command):
    """One verb of the command line."""

    def __init__(
        self,
        name: str,
        text: str,
        module: str = "",
        *,
        model: str = "",
        function: str = "run",
        arguments: Sequence[click.Parameter] = (),
    ) -> None:
        super().__init__(name, help=text)
        self._module = module or f"harness.cli.verbs.{name}_verb"
        self._function = function
        self._model = model or f"{name.capitalize()}Request"
        self._arguments = arguments

    @functools.cached_property
    def request(self) -> type[Options]:
        """The model of the options."""
        module = importlib.import_module(self._module)
        model: type[Options] = getattr(module, self._model)
        return model

    @property
    def params(self) -> list[click.Parameter]:
        """The options and arguments, from the model."""
        return self._params

    @params.setter
    def params(self, _: list[click.Parameter]) -> None:
        """Ignores that click sets an empty list."""

    @functools.cached_property
    def _params(self) -> list[click.Parameter]:
        from harness.options import option

        found: list[click.Parameter] = [*self._arguments]
        found += [
            _argument(of) if of.is_argument else DeclaredOption(of)
            for of in option.declared(self.request)
        ]
        owned: dict[str, DeclaredOption] = {}
        for mark in option.marks(self.request, option.Contributed).values():
            for owner, model in mark.models().items():
                for of in option.declared(model):
                    heading = f"Options of --{mark.by} {owner}"
                    own = DeclaredOption(of, owners=[owner])
                    own.shown = {heading: own}
                    first = owned.setdefault(of.name, own)
                    if first is not own:
                        first.owners.append(owner)
                        first.shown[heading] = own
        return [*found, *owned.values()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the options; what a plugin contributes is known before."""
        from harness.options import option

        args = list(_renamed(args, self.request.renamed))
        if not ctx.resilient_parsing:
            for mark in option.marks(self.request, option.Contributed).values():
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
        """Makes the request and runs the verb."""
        function = getattr(importlib.import_module(self._module), self._function)
        call = Call(command=command_of(ctx), overrides=ctx.obj or {})
        return function(self.make_request(ctx), call)

    def make_request(self, ctx: click.Context) -> Options:
        """Returns the request that was parsed; what was not given has its default."""
        from harness.options import option

        given = {name: v for name, v in ctx.params.items() if v is not None}
        fields = self.request.model_fields
        for field, mark in option.marks(self.request, option.Contributed).items():
            chosen = given.get(mark.by, fields[mark.by].default)
            given[field] = self._contributed(mark, chosen, given)
        return self.request(**{k: v for k, v in given.items() if k in fields})

    def _contributed(self, mark: Any, chosen: str, given: Mapping[str, Any]) -> Options:
        """Returns the options of what was chosen."""
        from harness.options import option

        model = mark.models().get(chosen)
        own = {} if model is None else {of.field: of for of in option.declared(model)}
        values = {}
        for param in self.params:
            if not isinstance(param, DeclaredOption) or not param.owners:
                continue
            name = str(param.name)
            if name not in given:
                continue
            if name not in own:
                owners = " or ".join(f"--{mark.by} {owner}" for owner in param.owners)
                spelling = param.declared.spelling
                value = "" if param.is_flag else f" {given[name]}"
                instead = self._instead_of(spelling)
                raise PlanError(
                    f"{spelling}{value} has no effect with --{mark.by} {chosen}; "
                    + (instead or f"add {owners}, or leave {spelling} out")
                )
            of = own[name]
            values[name] = (
                of.kind.read(given[name], of.spelling)
                if param.is_deferred
                else given[name]
            )
        return option.NO_OPTIONS if model is None else model(**values)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Writes the options below their headings."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            for group, own in getattr(param, "shown", {_OTHER: param}).items():
                record = own.get_help_record(ctx)
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
    own, suffix = True, ""
    for word in args:
        own = own and word != "--"
        name, equals, value = word.partition("=")
        if suffix or not own or name not in renamed:
            yield word + suffix * word[-1:].isdecimal()
            suffix = ""
            continue
        now, suffix = renamed[name]
        yield now + equals + value + (suffix * value[-1:].isdecimal())
        suffix = suffix * (not equals)


def _values_of(name: str, args: Sequence[str]) -> list[str]:
    """Returns what an option is given, without reading the others."""
    own = args[: args.index("--")] if "--" in args else args
    joined = [word.partition("=")[2] for word in own if word.startswith(f"{name}=")]
    return joined + [value for word, value in itertools.pairwise(own) if word == name]


def _argument(of: Option) -> click.Argument:
    return click.Argument(
        [of.field],
        required=of.is_required,
        metavar=None if of.metavar == of.kind.metavar else of.metavar,
        nargs=-1 if of.kind.is_multiple else 1,
        type=_Value(of),
    )


def use_file(ctx: click.Context, settings: Mapping[str, Any]) -> None:
    """Takes the settings of a study file as defaults of the options."""
    ctx.default_map = {**(ctx.default_map or {}), **settings}
    ctx.meta[_OF_FILE] = True


def command_of(ctx: click.Context) -> tuple[str, ...]:
    """Returns the command as options only; what a study file set is written out."""
    if _OF_FILE not in ctx.meta:
        return ("python", "-m", "harness", *sys.argv[1:])
    words = ["python", "-m", "harness", str(ctx.info_name)]
    given = ctx.meta.get(_GIVEN, {})
    for param in ctx.command.params:
        if isinstance(param, DeclaredOption) and param.name in given:
            words += _words(param, given[param.name])
    return tuple(words)


def _words(option: DeclaredOption, value: Any) -> list[str]:
    name = option.declared.spelling
    if option.is_flag:
        return [name] if value else list(option.secondary_opts)
    if option.nargs > 1:
        return [name, *map(_text, value)]
    values = value if option.multiple else [value]
    return [word for one in values for word in (name, _text(one))]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)

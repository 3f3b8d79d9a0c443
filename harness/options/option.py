"""An option is declared once, as a field of a frozen model.

    class SlurmOptions(Options):
        '''Options of ``--launcher slurm``.'''

        partition: Annotated[
            str | None, Option(help="Of the cluster.", default="the cluster's")
        ] = None

The type of the field says what is allowed. The field is the option of the command
line, under its group in ``--help``; the key of study files, with its check and its part
of the published JSON Schema; and the row of the tables in ``harness/README.md``. A
field without ``Option`` is none of these.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticUndefined

from harness.options import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.options.kinds import Kind

Mark = TypeVar("Mark")

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


class Options(BaseModel):
    """Base of all models that declare options."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    not_options: ClassVar[frozenset[str]] = frozenset()
    """Fields of a base class that are no options here."""
    former: ClassVar[Mapping[str, str]] = {}
    """What is used in place of options of earlier versions, by their names."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """What an option is besides name, type and default of its field.

    Attributes:
      help: What it does, in Markdown: a sentence or two.
      group: Its heading in ``--help``.
      name: Without dashes; by default that of the field, with dashes for underscores.
      also: Other spellings, such as ``-o``.
      kind: How its value is read; by default this follows from the type.
      metavar: What stands for the value; by default that of the kind.
      default: Words for a default that is derived; by default that of the field.
      is_argument: Whether its value stands without a name, as in ``report STUDY``.
      is_key: Whether study files have it.
      complete: Returns the values that a shell offers for what was typed, from the
        other values.
    """

    help: str = ""
    group: str = "Options"
    name: str = ""
    also: tuple[str, ...] = ()
    kind: Kind | None = None
    metavar: str = ""
    default: str = ""
    is_argument: bool = False
    is_key: bool = True
    complete: Callable[[Mapping[str, Any], str], list[str]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contributed:
    """Marks the field with the options of what another option names.

    Each of them is shown under the name that it belongs to, and refused with any other.
    """

    by: str  # The field that chooses, such as ``launcher``.
    # Returns the model of each name that has options.
    models: Callable[[], Mapping[str, type[Options]]]
    # Makes the model of a further name known, such as that of a plugin.
    use: Callable[[str], object]

    def choose(self, texts: Iterable[str]) -> bool:
        """Makes the models of names known, before options are read."""
        unknown = [text for text in texts if text not in self.models()]
        for text in unknown:
            self.use(text)
        return bool(unknown)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """Marks the field with the settings that were requested, by name.

    Each field of a record is an option: its description is the help, and without it
    nothing is requested.
    """

    model: type[BaseModel]  # The record.
    # Returns in words what holds without an option, from its metadata.
    default: Callable[[Any], str]
    group: str  # Their heading in ``--help``.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One declared option."""

    field: str  # Name of the field.
    option: Option  # What was declared.
    kind: Kind  # How its value is read.
    default: Any  # Of the field; None where it has none, or where it is derived.
    is_required: bool  # Whether the field has no default.
    group: str  # Its heading in ``--help``.

    @property
    def name(self) -> str:
        """The name without dashes, which is the key in study files."""
        return self.option.name or self.field.replace("_", "-")

    @property
    def spelling(self) -> str:
        """The option as users write it, such as ``--replicas``."""
        return f"--{self.name}"

    @property
    def help(self) -> str:
        """The help as plain text."""
        return _LINK.sub(r"\1", self.option.help).replace("`", "")

    @property
    def default_text(self) -> str:
        """What holds without the option, in Markdown; empty for nothing."""
        is_nothing = self.default is None or self.default is False
        if self.option.default or is_nothing or self.default == {}:
            return self.option.default
        return f"`{self.kind.write(self.default)}`"

    @property
    def metavar(self) -> str:
        """What stands for the value."""
        return self.option.metavar or self.kind.metavar


def declared(model: type[Options]) -> list[Declared]:
    """Returns the options of a model, in the order of its fields."""
    found = []
    for field, info in model.model_fields.items():
        if field in model.not_options:
            continue
        for option in info.metadata:
            if isinstance(option, Recorded):
                found += [
                    Declared(
                        field=name,
                        option=Option(
                            help=of.description or "", default=option.default(of)
                        ),
                        kind=kinds.kind_of(of.annotation, of.metadata),
                        default=None,
                        is_required=False,
                        group=option.group,
                    )
                    for name, of in option.model.model_fields.items()
                ]
            if not isinstance(option, Option):
                continue
            default = info.get_default(call_default_factory=True)
            found.append(
                Declared(
                    field=field,
                    option=option,
                    kind=option.kind or kinds.kind_of(info.annotation, info.metadata),
                    default=None if default is PydanticUndefined else default,
                    is_required=info.is_required(),
                    group=option.group,
                )
            )
    return found


def marks(model: type[Options], kind: type[Mark]) -> dict[str, Mark]:
    """Returns the fields that have a mark of one kind, with it."""
    return {
        field: mark
        for field, info in model.model_fields.items()
        for mark in info.metadata
        if isinstance(mark, kind) and field not in model.not_options
    }


NO_OPTIONS: Final = Options()
"""Of a name that has no options."""

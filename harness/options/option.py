"""An option is declared once, as a field of a frozen model.

    class SlurmOptions(Options):
        partition: str | None = option(None, "Of the cluster.", shown="the cluster's")

The type of the field says what is allowed. The field is the option of the command
line, under its group in ``--help``; the key of study files, with its check and its part
of the published JSON Schema. A field without ``Option`` is none of these.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import pydantic
from pydantic_core import PydanticUndefined

from harness.options import kinds
from results.records.schema import DIALECT

SETTINGS: Final = "Settings"
"""The heading of what ``--set`` gives."""
SCHEMA_NAME: Final = "study.schema.json"
_PLAIN: Final = (bool, int, float, str)
_OF_THE_FIELD: Final = dataclasses.replace(kinds.TEXT)
"""The kind that follows from the type of the field."""


class Options(pydantic.BaseModel):
    """Base of all models that declare options."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    not_options: ClassVar[frozenset[str]] = frozenset()
    """Fields of a base class that are no options here."""
    former: ClassVar[Mapping[str, str]] = {}
    """What is used in place of options of earlier versions, by their names."""
    renamed: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Options of recorded commands by their names: the one now, and a number's unit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What an option is besides name, type and default of its field."""

    help: str = ""  # What it does, in Markdown: a sentence or two.
    group: str = ""  # Its heading in ``--help``; by default that of the one before.
    name: str = ""  # Without dashes, as in study files; by default that of the field.
    short: str = ""  # Another spelling, such as ``-o``.
    kind: kinds.Kind = _OF_THE_FIELD  # How its value is read.
    metavar: str = ""  # What stands for the value; by default that of the kind.
    default: str = ""  # Words for a default that is derived.
    is_argument: bool = False  # Whether its value has no name, as in ``report STUDY``.
    is_key: bool = True  # Whether study files have it.
    is_setting: bool = False  # Whether it is given as ``--set NAME=VALUE``.
    owner: str = ""  # What it is of alone, such as ``--launcher slurm``.
    # Returns the values that a shell offers for what was typed, from the other values.
    complete: Callable[[Mapping[str, Any], str], list[str]] | None = None
    field: str = ""  # Name of the field, once it is declared.
    value: Any = None  # Default of the field; None where it is derived, or required.
    is_required: bool = False  # Whether the field has no default.

    @property
    def spelling(self) -> str:
        return f"--set {self.name}" if self.is_setting else f"--{self.name}"

    @property
    def default_text(self) -> str:
        """What holds without the option, as plain text; empty for nothing."""
        is_nothing = self.value is None or self.value is False or self.value == {}
        if self.default or is_nothing:
            return self.default.replace("`", "")
        return self.kind.write(self.value)

    def described(self, gap: str = "  ") -> str:
        """Returns its help and default as plain text."""
        default = self.default_text and f"{gap}[default: {self.default_text}]"
        return self.help.replace("`", "") + default


def option(value: Any, text: str = "", group: str = "", **settings: Any) -> Any:
    """Returns the default of a field that is an option; ``...`` if it is required.

    ``shown`` are words for a default that is derived, and the others as in ``Option``.
    """
    shown = settings.pop("shown", "")
    field: Any = pydantic.Field(value)
    field.metadata.append(Option(text, group, default=shown, **settings))
    return field


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contributed:
    """Marks the field with the settings of what another option names."""

    by: str  # The field that chooses, such as ``launcher``.
    # Returns the model of each name that has settings.
    models: Callable[[], Mapping[str, type[Options]]]
    # Makes the model of a further name known, such as that of a plugin.
    use: Callable[[str], object]
    field: str = ""  # Name of the field, once it is declared.


NO_OPTIONS: Final = Options()  # Of a name that has no options.


def contributed(model: type[Options]) -> Contributed | None:
    for field, info in model.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, Contributed) and field not in model.not_options:
                return dataclasses.replace(mark, field=field)
    return None


@functools.cache  # asking Pydantic for the kinds of all fields takes 10 ms
def declared(model: type[Options]) -> tuple[Option, ...]:
    options = []
    group = "Options"
    for field, info in model.model_fields.items():
        own = [mark for mark in info.metadata if isinstance(mark, Option)]
        group = own[0].group or group if own else group
        if not own or field in model.not_options:
            continue
        given, kind = own[0], own[0].kind
        if kind is _OF_THE_FIELD:
            kind = kinds.kind_of(info.annotation, info.metadata)
        value = info.get_default(call_default_factory=True)
        made = dataclasses.replace(
            given,
            field=field,
            group=group,
            name=given.name or field.replace("_", "-"),
            kind=kind,
            metavar=given.metavar or kind.metavar,
            value=None if value is PydanticUndefined else value,
            is_required=info.is_required(),
        )
        options.append(made)
    return tuple(options)


SET: Final = "settings"
"""The field of the option that gives settings."""


def settings(model: type[Options]) -> dict[str, list[Option]]:
    """Returns the keys of ``--set``: of the model, or of what another option names."""
    by_name = {each.name: [each] for each in declared(model) if each.is_setting}
    if (mark := contributed(model)) is None:
        return by_name
    for name, own in mark.models().items():
        for each in declared(own):
            owner = f"--{mark.by} {name}"
            made = dataclasses.replace(each, is_setting=True, owner=owner)
            by_name.setdefault(each.name, []).append(made)
    return by_name


def set_option(keys: Iterable[str]) -> Option:
    return Option(
        "A setting below; can be repeated.",
        SETTINGS,
        name="set",
        field=SET,
        kind=dataclasses.replace(
            kinds.TEXTS, choices=tuple(f"{each}=" for each in keys)
        ),
        metavar="KEY=VALUE",
    )


def keys_of(model: type[Options]) -> dict[str, Option]:
    options = {name: own[0] for name, own in settings(model).items()}
    options |= {each.name: each for each in declared(model)}
    return {
        name: each
        for name, each in options.items()
        if each.is_key and not each.is_argument
    }


def make_model(keys: Mapping[str, Option]) -> type[pydantic.BaseModel]:
    """Returns the model that checks a study file: closed, and without conversions."""
    fields: dict[str, Any] = {}
    for name, key in keys.items():
        words = key.described(" ")
        field = pydantic.Field(default=None, alias=name, description=words)
        fields[key.field] = (key.kind.annotation, field)
    model: type[pydantic.BaseModel] = pydantic.create_model(
        "StudyFile",
        __config__=pydantic.ConfigDict(
            extra="forbid", strict=True, frozen=True, allow_inf_nan=False
        ),
        __doc__="A sweep as a TOML file: each key is an option of 'python -m harness"
        " sweep' without its dashes; 'sweep FILE' reads it.",
        **fields,
    )
    return model


def render_schema(model: type[Options]) -> str:
    keys = keys_of(model)
    schema = {"$schema": DIALECT, **make_model(keys).model_json_schema()}
    for name, field in schema["properties"].items():
        # None says that a key may be left out; what holds then is the option's.
        field.pop("default", None)
        field.pop("title", None)
        if not keys[name].default and isinstance(keys[name].value, _PLAIN):
            field["default"] = keys[name].value
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=True) + "\n"

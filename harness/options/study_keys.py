"""The keys of study files: the declared options of a sweep, checked as in TOML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pydantic

from harness.options.option import Contributed, declared, marks
from results.records.schema import DIALECT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.options.option import Declared, Options

SCHEMA_NAME: Final = "study.schema.json"
_PLAIN: Final = (bool, int, float, str)
_TITLE: Final = "StudyFile"
_DESCRIPTION: Final = (
    "A sweep as a TOML file: each key is an option of 'python -m harness sweep' without"
    " its dashes; 'sweep --file' reads it."
)


def keys_of(model: type[Options]) -> dict[str, Declared]:
    """Returns what a study file can set, by key."""
    models = [model]
    for mark in marks(model, Contributed).values():
        models += mark.models().values()
    found: dict[str, Declared] = {}
    for of in models:
        for option in declared(of):
            if option.option.is_key and not option.option.is_argument:
                found.setdefault(option.name, option)
    return found


def make_model(keys: Mapping[str, Declared]) -> type[pydantic.BaseModel]:
    """Returns the model that checks a study file: closed, and without conversions."""
    fields: dict[str, Any] = {
        key.field: (
            key.kind.annotation,
            pydantic.Field(default=None, alias=name, description=_described(key)),
        )
        for name, key in keys.items()
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


def _described(key: Declared) -> str:
    default = key.default_text.replace("`", "").strip()
    return key.help + (f" [default: {default}]" if default else "")


def render_schema(model: type[Options]) -> str:
    """Returns the JSON Schema of a study file, as it is published."""
    keys = keys_of(model)
    schema = {"$schema": DIALECT, **make_model(keys).model_json_schema()}
    for name, field in schema["properties"].items():
        # None says that a key may be left out; what holds then is the option's.
        field.pop("default", None)
        field.pop("title", None)
        default = keys[name].default
        if not keys[name].option.default and isinstance(default, _PLAIN):
            field["default"] = default
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=True) + "\n"

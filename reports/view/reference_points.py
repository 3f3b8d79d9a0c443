"""Published throughputs that a report shows beside its own, from cited YAML files.

A file has a list ``sources``; each cites where its figures are from, says how their
definitions differ from the ones here, and has series of throughputs by number of
devices. Files of this project are in ``reports/references``; users add their own.
"""

from __future__ import annotations

import difflib
import errno
import importlib.resources
import itertools
import os
import pathlib
import reprlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import yaml
from pydantic import Field, ValidationError, model_validator

from results.errors import ResultsError
from results.records.bounds import Line, Name, Replicas
from results.records.models import ScalingMode
from results.records.record_base import Record
from results.records.texts import printable
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.models import Plan

NO_REFERENCES: Final = "none"
_FOLDER = importlib.resources.files("reports") / "references"
_MAX_BYTES = 100_000
_MAX_ENTRIES = 100
_MOST_SHOWN = 80
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring = 2, _MOST_SHOWN  # aliases can stand for any amount

Rate = Annotated[float, Field(gt=0, le=1e12)]
Devices = Replicas


class ReferencesError(ResultsError):
    """References that do not exist, cannot be read, or are of other workloads."""


class Series(Record):
    """Throughputs of one system by number of devices."""

    name: Name = Field(description="device and precision")
    examples_per_sec: Annotated[
        dict[Devices, Rate], Field(min_length=1, max_length=_MAX_ENTRIES)
    ] = Field(description="by number of devices")

    def efficiency(self, num_devices: int) -> float | None:
        """Returns parallel efficiency; None without a figure for one device."""
        one = self.examples_per_sec.get(1)
        if one is None:
            return None
        return self.examples_per_sec[num_devices] / (num_devices * one)


class Source(Record):
    """Figures of one publication, all with the same definitions."""

    title: Line
    year: Annotated[int, Field(ge=1950, le=2200)]
    url: Line = Field(default="", description="for readers of the file")
    workload: Name = Field(description="as in 'python -m harness list workloads'")
    mode: ScalingMode | None = Field(
        default=None, description="needed where a series has a figure for one device"
    )
    differences: Annotated[
        tuple[Line, ...], Field(min_length=1, max_length=_MAX_ENTRIES)
    ] = Field(description="how what was measured differs from what is measured here")
    series: Annotated[tuple[Series, ...], Field(min_length=1, max_length=_MAX_ENTRIES)]

    @model_validator(mode="after")
    def _has_mode_of_its_efficiency(self) -> Source:
        if self.mode is None and any(1 in one.examples_per_sec for one in self.series):
            raise ValueError(
                "'mode' is missing, but a series has a figure for 1 device; add"
                " mode: weak, or mode: strong"
            )
        return self


class _References(Record):
    """The content of a file."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=_MAX_ENTRIES)]


def names() -> tuple[str, ...]:
    """Returns the names of the files of this project."""
    found = [pathlib.PurePath(entry.name) for entry in _FOLDER.iterdir()]
    return tuple(sorted(path.stem for path in found if path.suffix == ".yaml"))


def read(name: str) -> tuple[Source, ...]:
    """Returns the sources of a file, by its path or its name in this project.

    Raises:
      ReferencesError: There is no such file, or it is not one of references.
    """
    if name in names():
        return _parse((_FOLDER / f"{name}.yaml").read_bytes(), name)
    path = pathlib.Path(name)
    real = pathlib.Path(os.path.realpath(path))
    try:
        content = untrusted.read_bytes(real, max_bytes=_MAX_BYTES)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except OSError as error:
        allowed = ", ".join([*names(), NO_REFERENCES])
        nearest = difflib.get_close_matches(name, [*names(), NO_REFERENCES], n=1)
        meant = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ReferencesError(
            f"--references {name!r}: {error.strerror or error}; {meant}allowed are"
            f" {allowed}, and YAML files (see reports/README.md)"
        ) from error
    except untrusted.DamagedFileError as error:
        raise ReferencesError(
            f"--references {name!r}: {error}; give a YAML file of references of at most"
            f" {_MAX_BYTES} bytes (see reports/README.md)"
        ) from error
    return _parse(content, name)


def choose(given: Sequence[str], plan: Plan) -> tuple[Source, ...]:
    """Returns the sources to show beside a study.

    Args:
      given: Paths and names; none for the default: all of this project for a study on
        GPUs, of its workload, and nothing for others.
      plan: That of the study.

    Raises:
      ReferencesError: A file cannot be used, or has nothing on the study's workloads.
    """
    workloads = {trial.spec.workload for trial in plan.trials}
    if not given:
        is_on_gpus = any(trial.spec.device == "gpu" for trial in plan.trials)
        found = [source for name in names() for source in read(name)]
        return tuple(s for s in found if is_on_gpus and s.workload in workloads)
    if NO_REFERENCES in given:
        if len(given) > 1:
            raise ReferencesError(
                f"--references: {NO_REFERENCES!r} stands beside other names; give it"
                " alone"
            )
        return ()
    chosen: list[Source] = []
    for name in given:
        sources = read(name)
        fitting = [source for source in sources if source.workload in workloads]
        if not fitting:
            known = sorted({source.workload for source in sources})
            raise ReferencesError(
                f"--references {name!r}: has figures of {', '.join(known)}, but the"
                f" study is of {', '.join(sorted(workloads)) or 'no workload'}; give"
                f" other references, or --references {NO_REFERENCES}"
            )
        chosen += fitting
    return tuple(chosen)


class _Loader(yaml.SafeLoader):
    """Refuses keys that stand twice; YAML would take the last one, and say nothing."""


def _make_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float, bool)):
            raise _at(node, "a key is not a name or a number")
        if key in made:
            raise _at(key_node, f"the key {_cut(key)} stands twice")
        made[key] = loader.construct_object(value_node, deep=True)
    return made


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _make_mapping)


def _at(node: Any, text: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=node.start_mark)


def _parse(content: bytes, name: str) -> tuple[Source, ...]:
    try:
        data = yaml.load(content, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise ReferencesError(
            f"--references {name!r}{where}: {_one_line(problem)}; correct the file"
        ) from error
    try:
        return _References.model_validate(data).sources
    except ValidationError as error:
        raise ReferencesError(
            f"--references {name!r}: {_explain(error)}; correct the file"
            " (reports/README.md describes it)"
        ) from error


def _explain(error: ValidationError) -> str:
    """Returns the first problem; a misspelt key comes before the one it stands for."""
    problems = error.errors(include_url=False)
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    place, kind = first["loc"], first["type"]
    where = _place(place)
    if kind == "extra_forbidden":
        allowed = list(_model_at(place).model_fields)
        nearest = difflib.get_close_matches(str(place[-1]), allowed, n=1)
        meant = f"did you mean {nearest[0]!r}? " if nearest else ""
        known = ", ".join(allowed)
        return f"{where}unknown key {_cut(place[-1])}; {meant}allowed are {known}"
    if kind == "missing":
        return f"{where}the key {_cut(place[-1])} is missing"
    if kind == "model_type":
        known = ", ".join(_model_at(place).model_fields)
        return f"{where}is {_cut(first['input'])}; it must have the keys {known}"
    text = _one_line(first["msg"].removeprefix("Value error, "))
    if place[-1] == "[key]":
        name = "a number of devices"
    elif "examples_per_sec" in place[:-1]:
        name = f"examples_per_sec at {place[-1]} devices"
    elif isinstance(place[-1], str):
        name = _cut(place[-1])
    else:  # what is wrong is in no single key
        return f"{where}{text}"
    return f"{where}{name} is {_cut(first['input'])}: {text[:1].lower()}{text[1:]}"


def _model_at(place: Sequence[str | int]) -> type[Record]:
    """Returns the model of the keys at a place of a file."""
    if "series" in place[:-1]:
        return Series
    return Source if "sources" in place[:-1] else _References


def _place(place: Sequence[str | int]) -> str:
    """Returns a place in words, counted from 1: "source 1, series 2: "."""
    words = [
        f"{str(name).removesuffix('s') if name == 'sources' else name} {index + 1}"
        for name, index in itertools.pairwise(place)
        if isinstance(index, int) and name in ("sources", "series", "differences")
    ]
    return f"{', '.join(words)}: " if words else ""


def _cut(value: object) -> str:
    return _one_line(_REPR.repr(value))[:_MOST_SHOWN]


def _one_line(text: str) -> str:
    return printable(" ".join(str(text).split()))

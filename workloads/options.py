"""Options of workloads: presets, overrides, and error messages.

The planner imports this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

JIT_OFF = "off"
JIT_COMPUTE = "compute"
JITS = (JIT_OFF, JIT_COMPUTE)
"""What XLA compiles: nothing, or forward and backward pass of each replica."""

CONV_LAYOUTS = ("auto", "nhwc")
"""Order of dimensions in convolutions: what TensorFlow finds faster, or the model's."""

EXTERNAL_WRITES = ("detect", "never")
"""Whether a replicator with copies looks for variables that were written outside steps;
whoever creates it reads this, and other backends have nothing to look for."""

INPUT_DTYPES = ("float32", "uint8")
"""Types in which pixels are sent to the devices of replicas."""

_Config = TypeVar("_Config")


def apply_options(
    workload: str,
    presets: Mapping[str, _Config],
    preset: str,
    options: Mapping[str, Any],
) -> _Config:
    """Returns a preset's configuration with ``options`` in place of its values."""
    if preset not in presets:
        raise ValueError(
            f"preset {preset!r} is unknown to {workload}: allowed are "
            f"{_listed(presets)}{_suggestion(preset, presets)}"
        )
    chosen: Any = presets[preset]
    defaults = {field.name: field.default for field in dataclasses.fields(chosen)}
    for name, value in options.items():
        if name not in defaults:
            raise ValueError(
                f"option {name!r} is unknown to {workload}: allowed are "
                f"{_listed(defaults)}{_suggestion(name, defaults)}"
            )
        _check_type(name, value, type(defaults[name]))
    converted: dict[str, Any] = {
        name: float(value) if isinstance(defaults[name], float) else value
        for name, value in options.items()
    }
    found: _Config = dataclasses.replace(chosen, **converted)
    return found


def configurations(
    workload: str, presets: Mapping[str, _Config]
) -> Callable[[str, Mapping[str, Any]], _Config]:
    """Returns ``apply_options`` of one workload: from a preset and options."""
    return functools.partial(apply_options, workload, presets)


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raises unless an option has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"option {name}={value!r} must be one of {_listed(allowed)}")


def check_jit(jit: Any, batch_norm: str = "local") -> None:
    """Raises unless the compiled part of a step is one that XLA can compile."""
    check_choice("jit", jit, JITS)
    if jit == JIT_COMPUTE and batch_norm != "local":
        raise ValueError(
            f"option jit={jit!r} with batch_norm={batch_norm!r} would need collectives "
            "in a function that is compiled for one replica: use batch_norm 'local', "
            "or jit 'off'"
        )


def check_conv_layout(conv_layout: Any, jit: str) -> None:
    """Raises unless the layout of convolutions is one that can be requested."""
    check_choice("conv_layout", conv_layout, CONV_LAYOUTS)
    if conv_layout != "auto" and jit != JIT_OFF:
        raise ValueError(
            f"option conv_layout={conv_layout!r} has no effect with jit={jit!r}, where "
            "XLA chooses the layout of each convolution: leave one of the two out"
        )


def check_range(
    name: str,
    value: float,
    *,
    low: float,
    below: float | None = None,
    high: float | None = None,
) -> None:
    """Raises unless an option is within its limits."""
    is_above = (below is not None and value >= below) or (
        high is not None and value > high
    )
    if value < low or is_above:
        limit = "" if below is None else f" and below {below}"
        limit += "" if high is None else f" and at most {high}"
        raise ValueError(f"option {name}={value!r} must be at least {low}{limit}")


def _check_type(name: str, value: Any, expected: type) -> None:
    # bool is an int in Python, and an int is a fine float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    matches = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: is_number and math.isfinite(value),
        str: isinstance(value, str),
    }
    if not matches[expected]:
        kind = {bool: "true or false", int: "an integer", float: "a finite number"}
        raise ValueError(
            f"option {name}={value!r} must be {kind.get(expected, 'a string')}"
        )


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""

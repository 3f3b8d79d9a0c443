"""From the options of a sweep, as strings, to a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from harness.errors import ParseError
from harness.planning import defaults
from harness.planning.ranges import parse_counts, parse_names, parse_percentage
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.planning.request import SweepRequest
    from results.records.models import Control, OptionValue, ScalingMode

_MOST_CHARACTERS = 20


def make_request(settings: dict[str, Any]) -> SweepRequest:
    """Returns the request that the options of ``request_options`` describe.

    Raises:
      ParseError: An option cannot be parsed.
    """
    from harness.planning.request import SweepRequest
    from results.records.models import Allocator, Order

    backends, replicas = settings.pop("backends"), settings.pop("replicas")
    order, allocator = settings.pop("order"), settings.pop("allocator")
    target = settings.pop("target")
    # A verb that judges revisions has neither of these.
    efficiency_target = settings.pop(
        "efficiency_target", f"{defaults.EFFICIENCY_TARGET:.0%}"
    )
    controls = settings.pop("controls", "none")
    return SweepRequest(
        backends=(
            defaults.BACKENDS
            if backends is None
            else parse_names(backends, what="--backends")
        ),
        replicas=None
        if replicas is None
        else parse_counts(replicas, what="--replicas"),
        modes=_parse_modes(settings.pop("modes")),
        order=None if order is None else Order(order),
        allocator=None if allocator is None else Allocator(allocator),
        efficiency_target=parse_percentage(
            efficiency_target, what="--efficiency-target"
        ),
        target=None if target is None else parse_percentage(target, what="--target"),
        controls=_parse_controls(controls),
        options=_parse_options(settings.pop("options")),
        **settings,
    )


def _parse_modes(text: str) -> tuple[ScalingMode, ...]:
    from results.records.models import ScalingMode

    names = parse_names(text, what="--mode")
    allowed = [mode.value for mode in ScalingMode]
    for name in names:
        if name not in allowed:
            raise ParseError(
                f"--mode: unknown scaling mode {name!r}; allowed are"
                f" {', '.join(allowed)}, or both separated by a comma"
            )
    return tuple(mode for mode in ScalingMode if mode.value in names)


def _parse_controls(text: str) -> tuple[Control, ...]:
    from results.records.models import Control

    allowed = (
        Control.NOSYNC,
        Control.SOLO,
        Control.SYNTHETIC,
        Control.INPUT_ONLY,
        Control.NO_UPDATE,
    )
    by_name: dict[str, tuple[Control, ...]]
    by_name = {control.value: (control,) for control in allowed}
    by_name |= {"all": allowed, "none": ()}
    names = parse_names(text, what="--controls")
    for name in names:
        if name not in by_name:
            raise ParseError(
                f"--controls: unknown control {name!r}; allowed are"
                f" {', '.join(by_name)}"
            )
        if name in ("all", "none") and len(names) > 1:
            raise ParseError(
                f"--controls: {name!r} stands beside other names in {text!r}; give it"
                " alone"
            )
    return tuple(
        control
        for control in allowed
        if any(control in by_name[name] for name in names)
    )


def _parse_options(texts: Sequence[str]) -> dict[str, OptionValue]:
    options: dict[str, OptionValue] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ParseError(f"--option: {text!r} is not KEY=VALUE")
        if key in options:
            raise ParseError(f"--option: {key!r} is given twice; give it once")
        options[key] = _parse_value(key, value)
    return options


def _parse_value(key: str, text: str) -> OptionValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        # Twenty characters suffice for any 64-bit integer; longer ones are floats.
        is_whole = re.fullmatch(r"[+-]?\d+", text) is not None
        value = int(text) if is_whole and len(text) <= _MOST_CHARACTERS else float(text)
    except ValueError:
        return text
    if not abs(value) <= (limits.MAX_SEED if is_whole else limits.MAX_REAL):
        raise ParseError(
            f"--option: {key}={text!r} is out of bounds; allowed are integers up"
            f" to {limits.MAX_SEED} and floats up to {limits.MAX_REAL:g}, and their"
            " negatives"
        )
    return value

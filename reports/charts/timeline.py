"""What devices did in one step: a row per device, a bar per layer, task or transfer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from reports.charts import rows
from reports.charts.drawing import tips

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from reports.charts.drawing.look import Look

BAR_HEIGHT: Final = 0.62
MOST_TIPS: Final = 400
"""Bars that say something when they are pointed at; more would be most of the page."""
KINDS: Final = {"forward": 1.0, "backward": 0.5, "collective": 1.0, "wait": 0.35}
"""Of a bar: how opaque it is. The first two have the colour of the backend."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One bar.

    Attributes:
      kind: One of ``KINDS``.
      begin: Where it begins.
      end: Where it ends.
      tip: What it says when it is pointed at; empty for nothing.
    """

    kind: str
    begin: float
    end: float
    tip: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One row.

    Attributes:
      group: Rows of one group stand together under it; empty for none.
      label: In the column at the left.
      text: In the column at the right.
      bars: What it did.
    """

    group: str
    label: str
    text: str
    bars: Sequence[Block]


def size_of(devices: Sequence[Device]) -> tuple[float, float]:
    """Returns width and height in points of a figure of these rows."""
    places = rows.place([device.group for device in devices])
    return rows.WIDTH, rows.height_of(places)


def draw_on(
    axes: Axes, devices: Sequence[Device], *, backend: str, axis_label: str, look_: Look
) -> None:
    """Draws the rows from the top, all from the begin of the step."""
    places = rows.place([device.group for device in devices])
    has_tips = sum(len(device.bars) for device in devices) <= MOST_TIPS
    for place, device in zip(places.rows, devices, strict=True):
        for kind, alpha in KINDS.items():
            bars = [bar for bar in device.bars if bar.kind == kind]
            parts = [[bar] for bar in bars] if has_tips else [bars] if bars else []
            for part in parts:
                color = look_.color(backend) if kind.endswith("ward") else look_.muted
                patch = PathPatch(
                    Path.make_compound_path(*(_outline(bar, place) for bar in part)),
                    facecolor=color,
                    edgecolor=look_.paper,
                    linewidth=0.6,
                    alpha=alpha,
                    hatch="///" if kind == "wait" else None,
                    zorder=2,
                )
                axes.add_patch(patch)
                if has_tips:
                    tips.attach(patch, part[0].tip)
    end = max(bar.end for device in devices for bar in device.bars)
    axes.set_xlim(0, end or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(rows.MOST_TICKS, steps=[1, 2, 5, 10]))
    axes.set_xlabel(axis_label)
    rows.write_columns(
        axes,
        places,
        [device.label for device in devices],
        [device.text for device in devices],
        look=look_,
    )


def _outline(bar: Block, place: float) -> Path:
    top, bottom = place - BAR_HEIGHT / 2, place + BAR_HEIGHT / 2
    corners = [(bar.begin, top), (bar.end, top), (bar.end, bottom), (bar.begin, bottom)]
    return Path([*corners, corners[0]], closed=True)

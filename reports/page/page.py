"""Jinja2 with autoescaping always on, and the functions available to templates."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import math
from typing import Any

import jinja2
from markupsafe import Markup

from reports.words import formats

RADIUS = 4.5
MOST_LINKS = 24
"""Trials of one case to which a table links; all are in the table of trials."""
ROOMS = ("page", "site")
"""Folders of templates; those of the site extend those of the page."""
NOTHING = Markup("")
"""Of a section that has nothing to say: it is left out."""


def _polygon(angles: list[float], radii: list[float]) -> str:
    points = [
        (r * math.sin(math.radians(a)), -r * math.cos(math.radians(a)))
        for a, r in zip(angles, radii, strict=True)
    ]
    text = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f'<polygon points="{text}"/>'


def _cross(turn: float) -> str:
    angles = [turn + 90 * (k // 3) + (-22, 22, 45)[k % 3] for k in range(12)]
    radii = [(1.15, 1.15, 0.62)[k % 3] * RADIUS for k in range(12)]
    return _polygon(angles, radii)


# The shapes of svg.MARKERS, drawn for legends.
SHAPES = (
    f'<circle r="{RADIUS - 0.5}"/>',
    _polygon([45, 135, 225, 315], [RADIUS * 1.2] * 4),
    _polygon([0, 90, 180, 270], [RADIUS * 1.25] * 4),
    _polygon([0, 120, 240], [RADIUS * 1.2] * 3),
    _polygon([60, 180, 300], [RADIUS * 1.2] * 3),
    _cross(0),
    _cross(45),
    _polygon([72 * k for k in range(5)], [RADIUS * 1.1] * 5),
    _polygon([60 * k for k in range(6)], [RADIUS * 1.1] * 6),
    _polygon(
        [36 * k for k in range(10)], [RADIUS * (1.3, 0.55)[k % 2] for k in range(10)]
    ),
)


def swatch(series: int) -> Markup:
    """Returns the marker of a backend, as in the figures, for legends and tables."""
    return Markup(  # noqa: S704  # a constant shape and an integer
        '<svg class="swatch" viewBox="-6 -6 12 12" aria-hidden="true" '
        f'fill="var(--series-{int(series)})">{SHAPES[series]}</svg>'
    )


def _read(name: str) -> str:
    """Returns a file of ours that is part of every page."""
    path = importlib.resources.files("reports") / "page" / "templates" / name
    return path.read_text(encoding="utf-8").strip()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("reports", f"{room}/templates") for room in ROOMS]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    script = f"\n{_read('report.js')}\n{_read('tips.js')}\n"
    digest = hashlib.sha256(script.encode()).digest()
    environment.globals.update(
        formats=formats,
        swatch=swatch,
        ABSENT=formats.ABSENT,
        MOST_LINKS=MOST_LINKS,
        style=Markup(f"{_read('style.css')}\n{_read('figures.css')}"),  # noqa: S704  # ours
        script=Markup(script.strip("\n")),  # noqa: S704  # ours
        script_hash=base64.b64encode(digest).decode("ascii"),
    )
    return environment


def render_text(source: str, **context: Any) -> Markup:
    """Renders a template that a plugin has as text; escapes as ``render`` does."""
    text = _environment().from_string(source).render(**context)
    return Markup(text)  # noqa: S704  # jinja2 has escaped what needed it


def render(template: str, **context: Any) -> Markup:
    """Renders one template; everything but Markup is escaped."""
    text = _environment().get_template(f"{template}.html.j2").render(**context)
    return Markup(text)  # noqa: S704  # jinja2 has escaped what needed it

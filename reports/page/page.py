"""Jinja2 with autoescaping always on, and the functions available to templates."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from reports.charts import style
from reports.words import formats

if TYPE_CHECKING:
    from reports.view import View

RADIUS = 4.5
ROOMS = ("page", "site")
"""Folders of templates; those of the site extend those of the page."""
NOTHING = Markup("")
"""Of a section that has nothing to say: it is left out."""


class Section(NamedTuple):
    TITLE: str  # Above it, and in the links to sections.
    SLUG: str  # Its id.
    render: Callable[[View], Markup]  # Returns ``NOTHING`` where there is none.


def _shape(marker: str) -> str:
    """Returns a marker of the charts for legends and tables, as SVG."""
    if marker == "o":
        return f'<circle r="{RADIUS - 0.5}"/>'
    shape = MarkerStyle(marker)
    path = shape.get_path().transformed(shape.get_transform())
    corners: Any = path.to_polygons()[0]
    size = 1.2 * RADIUS / max(math.hypot(x, y) for x, y in corners)
    points = " ".join(f"{size * x:.2f},{-size * y:.2f}" for x, y in corners[:-1])
    return f'<polygon points="{points}"/>'


SHAPES = tuple(map(_shape, style.MARKERS))


def swatch(series: int) -> Markup:
    """Returns the marker of a backend, as in the figures, for legends and tables."""
    return Markup(  # noqa: S704  # a constant shape and an integer
        '<svg class="swatch" viewBox="-6 -6 12 12" aria-hidden="true" '
        f'fill="var(--series-{int(series)})">{SHAPES[series]}</svg>'
    )


@functools.cache
def asset(name: str, room: str = "page") -> Markup:
    """Returns a style sheet or script of ours, which pages contain as it is."""
    path = importlib.resources.files("reports") / room / "templates" / name
    return Markup(path.read_text(encoding="utf-8").strip())  # noqa: S704  # ours


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
    script = f"\n{asset('report.js')}\n{asset('tips.js')}\n"
    digest = hashlib.sha256(script.encode()).digest()
    environment.globals.update(
        formats=formats,
        swatch=swatch,
        ABSENT=formats.ABSENT,
        style=Markup(f"{asset('style.css')}\n{asset('figures.css')}"),  # noqa: S704  # ours
        script=Markup(script.strip("\n")),  # noqa: S704  # ours
        script_hash=base64.b64encode(digest).decode("ascii"),
    )
    return environment


def render_text(source: str, **context: Any) -> Markup:
    """Renders a template of a plugin's section, given as text.

    In it, ``formats`` writes numbers as the page does: ``formats.seconds(slowest)``.
    ``context`` has what the template names; everything but Markup is escaped.
    """
    text = _environment().from_string(source).render(**context)
    return Markup(text)  # noqa: S704  # jinja2 has escaped what needed it


def render(template: str, **context: Any) -> Markup:
    """Renders one template; everything but Markup is escaped."""
    text = _environment().get_template(f"{template}.html.j2").render(**context)
    return Markup(text)  # noqa: S704  # jinja2 has escaped what needed it

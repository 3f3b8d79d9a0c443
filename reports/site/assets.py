"""Style sheet and script of the site, which its pages contain."""

from __future__ import annotations

import functools
import importlib.resources

from markupsafe import Markup


@functools.cache
def text(name: str) -> Markup:
    """Returns a file of the folder of templates, to be put into a page as it is."""
    path = importlib.resources.files("reports") / "site" / "templates" / name
    return Markup(path.read_text(encoding="utf-8").strip())  # noqa: S704  # ours

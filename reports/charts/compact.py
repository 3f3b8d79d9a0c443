"""Makes the text of an SVG smaller without changing what is drawn."""

from __future__ import annotations

import re
from typing import Final

_GROUP: Final = re.compile(r"<g(/?)>|<g [^>]*?(/?)>|</g>")
_PATH: Final = re.compile(r' d="([^"]*)"')
# A line to a point, and lines from there to the same point: steps have many.
_REPEATED: Final = re.compile(r"(L-?\d+(?:\.\d+)? -?\d+(?:\.\d+)?)(?:\1(?![\d.]))+")
_CLIPPED: Final = re.compile(r'(<g clip-path="[^"]*")>\s*((?:<use [^>]*/>\s*)+)</g>')
_STYLE: Final = re.compile(r' style="([^"]*)"')


def compact(text: str) -> str:
    """Returns the SVG without groups that mean nothing and styles that repeat."""
    text = _CLIPPED.sub(_share_style, text)
    text = _PATH.sub(_shorten_path, text)
    text = _without_plain_groups(text)
    text = _STYLE.sub(_without_spaces, text)
    return re.sub(r"\n{2,}", "\n", text)


def _without_spaces(match: re.Match[str]) -> str:
    return re.sub(r"([:,;]) ", _letter, match.group(0))


def _share_style(match: re.Match[str]) -> str:
    """Gives the style of all marks to their group, if it is the same for all."""
    styles = set(_STYLE.findall(match.group(2)))
    if len(styles) != 1:
        return match.group(0)
    return (
        f'{match.group(1)} style="{styles.pop()}">{_STYLE.sub("", match.group(2))}</g>'
    )


def _shorten_path(match: re.Match[str]) -> str:
    path = re.sub(r"\s+", " ", match.group(1)).strip()
    path = re.sub(r" ?([A-Za-z]) ?", _letter, path)
    return f' d="{_REPEATED.sub(_letter, path)}"'


def _letter(match: re.Match[str]) -> str:
    return match.group(1)


def _without_plain_groups(text: str) -> str:
    """Removes the tags of groups without attributes, and keeps what is in them."""
    kept: list[bool] = []

    def choose(match: re.Match[str]) -> str:
        tag = match.group(0)
        if tag == "</g>":
            return tag if kept.pop() else ""
        if tag == "<g/>":
            return ""
        if not tag.endswith("/>"):
            kept.append(tag != "<g>")
            return tag if kept[-1] else ""
        return tag

    return _GROUP.sub(choose, text)

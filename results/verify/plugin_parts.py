"""What of a study is a plugin's, so that nothing here can recompute or identify it.

Nothing that a study names is imported: it may come from anybody.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

from results.judging import gate_metrics

if TYPE_CHECKING:
    from results.records.models import Plan

_SECTION: Final = re.compile(
    r'<section id="(?P<slug>[^"]*)" data-plugin="(?P<package>[^"]*)".*?</section>\n',
    re.DOTALL,
)
_LINK: Final = '<li><a href="#{}">'


def without_sections(page: str) -> tuple[str, list[str]]:
    """Returns a page without sections of plugins, and what was left out."""
    found = list(_SECTION.finditer(page))
    kept = _SECTION.sub("", page)
    for match in found:
        lines = kept.splitlines(keepends=True)
        link = _LINK.format(match["slug"])
        kept = "".join(line for line in lines if not line.startswith(link))
    return kept, [
        html.unescape(f"{match['slug']!r} of {match['package']}") for match in found
    ]


def not_covered(plan: Plan) -> list[str]:
    """Returns what is not known of the plugins of a study, one line each."""
    found = []
    for name, of in plan.plugins.items():
        package = str(of.get("package", ""))
        here = _here(package)
        found.append(
            f"{name} is a plugin ({of.get('object', '')}, {package}, files"
            f" {of.get('files', '')}), {here}: its figures are recomputed, and its code"
            " is not looked at"
        )
    gate = plan.measuring.gate
    declared = {facts.name for facts in plan.metrics}
    if gate and gate.metric not in {*gate_metrics.METRICS, *declared}:
        found.append(
            f"the gate judges {gate.metric}, which a plugin computes: what it says of a"
            " trial is its own"
        )
    return found


def _here(package: str) -> str:
    import importlib.metadata

    name, _, version = package.rpartition(" ")
    try:
        installed = importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "which is not installed here"
    if installed != version:
        return f"of which version {installed} is installed here"
    return "which is installed here"

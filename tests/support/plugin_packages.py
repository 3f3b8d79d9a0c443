"""Packages of somebody's that are installed for one test, without pip."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from harness.cli.main import VERBS
from harness.launch import catalog as launch_catalog
from replicator.catalog import BACKENDS
from reports.exports.export_formats import FORMATS
from results import plugins
from workloads.catalog import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TABLES = (WORKLOADS, BACKENDS, FORMATS, launch_catalog._FOUND)


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Returns a function that installs a package of one module; all is undone.

    Its arguments are the module, its text, and the entry points by kind.
    """
    modules = set(sys.modules)
    tables = [dict(table) for table in TABLES]
    monkeypatch.setattr(plugins, "_used", {})
    monkeypatch.setattr(plugins, "_folders", [])
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(
        module: str, text: str, *, version: str = "1.2", **entries: dict[str, str]
    ) -> Path:
        (site / f"{module}.py").write_text(text, encoding="utf-8")
        name = f"{module}_pack"
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        lines = []
        for kind, of_kind in entries.items():
            lines += [f"[replicator_harness.{kind}]"]
            lines += [f"{key} = {target}" for key, target in of_kind.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()
        return site

    yield make
    for name in set(sys.modules) - modules:
        if (site / f"{name}.py").exists() or (tmp_path / f"{name}.py").exists():
            del sys.modules[name]
    for verb in VERBS:
        verb.__dict__.pop("_params", None)
    for table, before in zip(TABLES, tables, strict=True):
        table.clear()
        table.update(before)

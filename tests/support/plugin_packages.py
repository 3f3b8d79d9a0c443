"""Packages of somebody's that are installed for one test, without pip."""

import importlib
import sys

import pytest

from harness.cli.main import SUBCOMMANDS
from harness.launch import launchers
from replicator.catalog import BACKENDS
from reports.exports.export_formats import FORMATS
from results import plugins
from workloads.catalog import WORKLOADS

TABLES = (WORKLOADS, BACKENDS, FORMATS, launchers._FOUND)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Returns a function that installs a package of one module; all is undone."""
    modules = set(sys.modules)
    tables = [dict(table) for table in TABLES]
    monkeypatch.setattr(plugins, "_used", {})
    monkeypatch.setattr(plugins, "_folders", [])
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(module, text, *, version="1.2", **entries):
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
    for subcommand in SUBCOMMANDS:
        subcommand.__dict__.pop("_params", None)
    for table, before in zip(TABLES, tables, strict=True):
        table.clear()
        table.update(before)

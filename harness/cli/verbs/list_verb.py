"""The verb ``list``: what a study can name, plugins too; the studies of a directory."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from harness import catalog
from harness.catalog import BACKENDS, PEERS, WORKLOADS
from harness.cli import exit_codes
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir
from harness.launch import catalog as launch_catalog
from harness.options.option import Option, Options
from results import plugins
from results.errors import ResultsError
from results.records.models import StatusRecord, TrialStatus
from results.records.texts import printable
from results.store import record_file, untrusted
from results.store.study_store import PLAN_NAME, VARIED_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from harness.cli.verb import Call
    from results.plugins import Complaint, Plugin
    from results.records.models import PlannedTrial


_DATE_LENGTH = len("2026-01-01 00:00")


class ListRequest(Options):
    """What is listed."""

    what: Annotated[
        Literal["workloads", "backends", "presets", "plugins", "studies"] | None,
        Option(is_argument=True),
    ] = None
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: ListRequest, _: Call) -> int:
    """Lists workloads, backends, presets and plugins, or the studies of a directory.

    A plugin that cannot be used is named on stderr, and the exit code is then 2.
    """
    if request.what == "studies":
        return show(request.runs_dir, is_json=request.is_json)

    found = read_plugins()
    for plugin in found:
        if plugin.problem:
            click.echo(one_line(f"error: {plugin.problem}"), err=True)
    write = listing_json if request.is_json else listing_text
    click.echo(write(request.what, found))
    has_problem = any(plugin.problem for plugin in found)
    return exit_codes.USAGE if has_problem else exit_codes.OK


def show(runs_dir: Path, *, is_json: bool) -> int:
    """Prints the studies of a directory, oldest first; returns the exit code.

    One that cannot be read is named on stderr, and the exit code is then 2.
    """
    roots = untrusted.folders_with(runs_dir, PLAN_NAME)
    for varied in untrusted.folders_with(runs_dir, VARIED_NAME):
        roots += untrusted.folders_with(varied, PLAN_NAME)
    found = [_read(root, runs_dir) for root in sorted(roots)]
    rows = [row for row in found if row is not None]
    code = exit_codes.OK if len(rows) == len(found) else exit_codes.USAGE
    rows.sort(key=lambda row: (row["created_at"], row["name"]))
    if is_json:
        click.echo(json.dumps({"studies": rows}, indent=2))
        return code
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        click.echo(printable(f"{row['name']:<{width}}  {_remark(row)}"))
    if not found:
        click.echo(f"no study in {str(runs_dir)!r}", err=True)
    return code


def _read(root: Path, runs_dir: Path) -> dict[str, Any] | None:
    try:
        return _row(Store.open(root), root.relative_to(runs_dir).as_posix())
    except ResultsError as error:
        click.echo(one_line(f"error: {error}"), err=True)
        return None


def _row(store: Store, name: str) -> dict[str, Any]:
    plan = store.read_plan()
    specs = [trial.spec for trial in plan.trials]
    return {
        # What the verbs take: the folder, which may have been renamed.
        "name": name,
        "study": plan.study,
        "created_at": plan.created_at,
        "workloads": list(dict.fromkeys(spec.workload for spec in specs)),
        "presets": list(dict.fromkeys(spec.preset for spec in specs)),
        "backends": list(dict.fromkeys(spec.backend for spec in specs)),
        "replicas": sorted({spec.num_replicas for spec in specs}),
        "num_trials": len(plan.trials),
        "num_ok": _num_ok(store, plan.trials),
    }


def _num_ok(store: Store, trials: Iterable[PlannedTrial]) -> int:
    records = (
        record_file.read(
            store.trial_dir(trial.trial_id) / "status.json", "status", StatusRecord
        )
        for trial in trials
    )
    return sum(
        record is not None and record.status is TrialStatus.OK for record in records
    )


def _remark(row: dict[str, Any]) -> str:
    date = row["created_at"][:_DATE_LENGTH].replace("T", " ")
    replicas = ",".join(map(str, row["replicas"]))
    return (
        f"{date}  {row['num_ok']}/{row['num_trials']} ok  {','.join(row['workloads'])}"
        f" {','.join(row['presets'])}, x{replicas}, {','.join(row['backends'])}"
    )


def _workloads() -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "description": info.description,
            "version": info.version,
            "data": [*info.builtin_data],
            "other_data": info.other_data,
            "default_preset": info.default_preset,
        }
        for info in WORKLOADS.values()
    ]


def _presets() -> list[dict[str, Any]]:
    return [
        {"workload": info.name, **dataclasses.asdict(preset)}
        for info in WORKLOADS.values()
        for preset in info.presets
    ]


def _backends() -> list[dict[str, Any]]:
    fields = ("name", "description", "kind", "max_replicas")
    rows = (*BACKENDS.values(), *PEERS.values())
    return [{f: getattr(info, f) for f in fields} for info in rows]


_LISTS = {"workloads": _workloads, "presets": _presets, "backends": _backends}


def _chosen(
    what: str | None, found: Iterable[Listed]
) -> dict[str, list[dict[str, Any]]]:
    lists = {name: rows() for name, rows in _LISTS.items() if what in (None, name)}
    plugins = [of.row() for of in found if not of.problem]
    if what == "plugins" or (what is None and plugins):
        lists["plugins"] = plugins
    return lists


def listing_json(what: str | None, found: Iterable[Listed] = ()) -> str:
    """Returns one list, or all of them, as JSON."""
    return json.dumps(_chosen(what, found), indent=2)


def listing_text(what: str | None, found: Iterable[Listed] = ()) -> str:
    """Returns one list, or all of them, as aligned text."""
    blocks = []
    for title, rows in _chosen(what, found).items():
        lines = [title if rows else f"{title}: none is installed"]
        width = max((len(_name_of(row)) for row in rows), default=0)
        lines += [f"  {_name_of(row):<{width}}  {_about(row)}" for row in rows]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _name_of(row: dict[str, Any]) -> str:
    return f"{row['workload']} {row['name']}" if "workload" in row else str(row["name"])


def _about(row: dict[str, Any]) -> str:
    if "package" in row:
        return f"{row['title']} ({row['kind']} of {row['package']}, {row['object']})"
    if "workload" in row:
        return (
            f"{row['description']}; {row['data']},"
            f" {row['per_replica_batch_size']} per replica,"
            f" {row['num_warmup_steps']} + {row['num_measured_steps']} steps"
        )
    if "kind" in row:
        return f"{row['description']} ({row['kind']})"
    data = ", ".join(row["data"])
    return f"{row['description']}; data: {data}, {row['other_data']}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An entry point, and what it is."""

    # The entry point; None where those of a kind contradict each other.
    plugin: Plugin | None
    found: Any = None  # Its object; None where there is a problem.
    problem: str = ""  # Why it cannot be used; empty if it can.

    def row(self) -> dict[str, Any]:
        """Returns the facts of one that can be used, as they are listed."""
        assert self.plugin is not None
        title = next(
            str(getattr(self.found, name))
            for name in ("description", "title", "TITLE", "summary", "output")
            if hasattr(self.found, name)
        )
        return {
            "name": self.plugin.name,
            "title": title,
            "kind": plugins.KINDS[self.plugin.kind],
            "package": self.plugin.distribution,
            "object": self.plugin.target,
        }


def tables() -> dict[str, tuple[Collection[str], Complaint]]:
    """Returns the names that this project has of each kind, and the check of others."""
    from reports.exports import export_formats
    from reports.page import build
    from reports.page.sections import SECTIONS
    from results.figures import frame, trial_metrics

    return {
        catalog.WORKLOAD: (catalog.WORKLOADS, catalog.complain(catalog.WORKLOAD)),
        catalog.BACKEND: (catalog.BACKENDS, catalog.complain(catalog.BACKEND)),
        "launchers": (launch_catalog.LAUNCHERS, launch_catalog.complain),
        trial_metrics.KIND: (frame.TRIAL_COLUMNS, trial_metrics.complain),
        build.PLUGINS: (
            [section.SLUG for section in SECTIONS],
            build.complain,
        ),
        "formats": (export_formats.FORMATS, export_formats.complain),
    }


def read_plugins() -> list[Listed]:
    """Imports every plugin that is installed; the catalogues have them then."""
    found: list[Listed] = []
    for kind, (table, complain) in tables().items():
        built_in = plugins.built_in_of(kind, table)
        try:
            entries = plugins.installed(kind, built_in)
        except plugins.PluginError as error:
            found.append(Listed(plugin=None, problem=str(error)))
            continue
        for name, plugin in entries.items():
            try:
                loaded = plugins.load(plugin, built_in, complain)
            except plugins.PluginError as error:
                found.append(Listed(plugin=plugin, problem=str(error)))
                continue
            if isinstance(table, dict):
                table.setdefault(name, loaded)
            found.append(Listed(plugin=plugin, found=loaded))
    return found

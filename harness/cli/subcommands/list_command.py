"""The subcommand ``list``: what a study can name; the studies of a directory."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from harness import catalog
from harness.catalog import BACKENDS, PEERS, WORKLOADS
from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import one_line
from harness.launch import launchers
from harness.launch.launchers import Launcher
from harness.options.option import Options, option
from harness.planning.request import RUNS_DIR, IsJson, RunsDir
from results import plugins
from results.errors import ResultsError
from results.plugins import complaint_of
from results.records.models import StatusRecord, TrialStatus
from results.records.texts import printable
from results.store import study_store, untrusted
from results.store.study_store import PLAN_NAME, VARIED_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    Rows = list[dict[str, Any]]


class ListRequest(Options):
    what: Literal["workloads", "backends", "presets", "plugins", "studies"] | None = (
        option(None, is_argument=True)
    )
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


_TEXTS: Final = {
    "workloads": "{description}; data: {data}, {other_data}",
    "presets": "{description}; {data}, {per_replica_batch_size} per replica,"
    " {num_warmup_steps} + {num_measured_steps} steps",
    "backends": "{description} ({kind})",
    "plugins": "{title} ({kind} of {package}, {object})",
    "studies": "{date}  {num_ok}/{num_trials} ok  {workloads} {presets}, x{replicas},"
    " {backends}",
}
"""What is said of each thing of a list, by the fields of its row."""


def run(request: ListRequest) -> int:
    """Lists workloads, backends, presets and plugins, or the studies of a directory.

    A plugin or study that cannot be used is named on stderr; the exit code is then 2.
    """
    if request.what == "studies":
        rows, problems = _read_studies(request.runs_dir)
        lists = {"studies": rows}
    else:
        rows, problems = _read_plugins()
        lists = {k: v for k, v in _lists().items() if request.what in (None, k)}
        if request.what == "plugins" or (request.what is None and rows):
            lists["plugins"] = rows
    for problem in problems:
        click.echo(one_line(f"error: {problem}"), err=True)
    if request.is_json:
        click.echo(json.dumps(lists, indent=2))
    elif request.what == "studies":
        for line in _lines("studies", rows):
            click.echo(printable(line))
        if not rows and not problems:
            click.echo(f"no study in {str(request.runs_dir)!r}", err=True)
    else:
        blocks = []
        for kind, each in lists.items():
            title = kind if each else f"{kind}: none is installed"
            blocks.append("\n  ".join([title, *_lines(kind, each)]))
        click.echo("\n\n".join(blocks))
    return ExitCode.USAGE if problems else ExitCode.OK


def _lines(kind: str, rows: Rows) -> Iterator[str]:
    names = [" ".join(filter(None, (row.get("workload"), row["name"]))) for row in rows]
    width = max(map(len, names), default=0)
    comma = ", " if kind == "workloads" else ","
    for name, row in zip(names, rows, strict=True):
        shown = {
            field: comma.join(map(str, value)) if isinstance(value, list) else value
            for field, value in row.items()
        }
        date = str(row.get("created_at"))[: len("2026-01-01 00:00")].replace("T", " ")
        yield f"{name:<{width}}  {_TEXTS[kind].format_map({**shown, 'date': date})}"


def _read_studies(runs_dir: Path) -> tuple[Rows, list[str]]:
    roots = untrusted.folders_with(runs_dir, PLAN_NAME)
    for varied in untrusted.folders_with(runs_dir, VARIED_NAME):
        roots += untrusted.folders_with(varied, PLAN_NAME)
    rows: Rows = []
    problems = []
    for root in sorted(roots):
        name = root.relative_to(runs_dir).as_posix()
        try:
            rows.append(_row(Store.open(root), name))
        except ResultsError as error:
            problems.append(str(error))
    return sorted(rows, key=lambda row: (row["created_at"], row["name"])), problems


def _row(store: Store, name: str) -> dict[str, Any]:
    plan = store.read_plan()
    specs = [trial.spec for trial in plan.trials]
    records = (
        study_store.read_record(
            store.trial_dir(trial.trial_id) / "status.json", "status", StatusRecord
        )
        for trial in plan.trials
    )
    statuses = [record and record.status for record in records]
    return {
        # What the subcommands take: the folder, which may have been renamed.
        "name": name,
        "study": plan.study,
        "created_at": plan.created_at,
        "workloads": list(dict.fromkeys(spec.workload for spec in specs)),
        "presets": list(dict.fromkeys(spec.preset for spec in specs)),
        "backends": list(dict.fromkeys(spec.backend for spec in specs)),
        "replicas": sorted({spec.num_replicas for spec in specs}),
        "num_trials": len(plan.trials),
        "num_ok": statuses.count(TrialStatus.OK),
    }


def _lists() -> dict[str, Rows]:
    fields = ("name", "description", "kind", "max_replicas")
    return {
        "workloads": [
            {
                "name": info.name,
                "description": info.description,
                "version": info.version,
                "data": [*info.builtin_data],
                "other_data": info.other_data,
                "default_preset": info.default_preset,
            }
            for info in WORKLOADS.values()
        ],
        "presets": [
            {"workload": info.name, **dataclasses.asdict(preset)}
            for info in WORKLOADS.values()
            for preset in info.presets
        ],
        "backends": [
            {field: getattr(info, field) for field in fields}
            for info in (*BACKENDS.values(), *PEERS.values())
        ],
    }


def _tables() -> dict[str, tuple[Collection[str], plugins.Complaint]]:
    """Returns the names that this project has of each kind, and the check of others."""
    from reports.exports import export_formats
    from reports.page import build
    from reports.page.sections import SECTIONS
    from results.figures import frame, trial_metrics

    return {
        catalog.WORKLOAD: (WORKLOADS, complaint_of(catalog.WorkloadInfo)),
        catalog.BACKEND: (BACKENDS, complaint_of(catalog.BackendInfo)),
        "launchers": (launchers.LAUNCHERS, complaint_of(Launcher)),
        trial_metrics.KIND: (frame.TRIAL_COLUMNS, trial_metrics.complain),
        build.PLUGINS: ([section.SLUG for section in SECTIONS], build.complain),
        "formats": (export_formats.FORMATS, export_formats.complain),
    }


def _read_plugins() -> tuple[Rows, list[str]]:
    """Imports every plugin that is installed; the catalogues have them then.

    Returns the facts of each, and why others cannot be used.
    """
    rows: Rows = []
    problems: list[str] = []
    for kind, (table, complain) in _tables().items():
        built_in = plugins.built_in_of(kind, table)
        try:
            entries = plugins.installed(kind, built_in)
        except plugins.PluginError as error:  # those of a kind contradict each other
            problems.append(str(error))
            continue
        for name, plugin in entries.items():
            try:
                loaded = plugins.load(plugin, built_in, complain)
            except plugins.PluginError as error:
                problems.append(str(error))
                continue
            if isinstance(table, dict):
                table.setdefault(name, loaded)
            titles = ("description", "title", "TITLE", "summary", "output")
            title = next(
                getattr(loaded, each) for each in titles if hasattr(loaded, each)
            )
            row = {"name": name, "title": str(title), "kind": plugins.KINDS[kind]}
            row |= {"package": plugin.distribution, "object": plugin.target}
            rows.append(row)
    return rows, problems

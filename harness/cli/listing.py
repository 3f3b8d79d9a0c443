"""Lists workloads, presets and backends, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from harness.catalog import BACKENDS, WORKLOADS


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
    return [{f: getattr(info, f) for f in fields} for info in BACKENDS.values()]


_LISTS = {"workloads": _workloads, "presets": _presets, "backends": _backends}


def _chosen(what: str | None) -> dict[str, list[dict[str, Any]]]:
    return {name: rows() for name, rows in _LISTS.items() if what in (None, name)}


def listing_json(what: str | None) -> str:
    """Returns one list, or all of them, as JSON."""
    return json.dumps(_chosen(what), indent=2)


def listing_text(what: str | None) -> str:
    """Returns one list, or all of them, as aligned text."""
    blocks = []
    for title, rows in _chosen(what).items():
        lines = [title]
        width = max(len(_label(row)) for row in rows)
        lines += [f"  {_label(row):<{width}}  {_remark(row)}" for row in rows]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _label(row: dict[str, Any]) -> str:
    return f"{row['workload']} {row['name']}" if "workload" in row else str(row["name"])


def _remark(row: dict[str, Any]) -> str:
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

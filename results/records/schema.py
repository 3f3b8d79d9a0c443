"""Versions of records: reads those before the current one, and publishes schemas.

Published studies are of versions 4 and 6. ``python -m results.records.schema FOLDER``
writes the JSON Schemas.
"""

from __future__ import annotations

import json
import pathlib
import reprlib
import sys
from typing import TYPE_CHECKING, Any, Final

from results import errors
from results.records import models
from results.records.models import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

OLDEST_VERSION = 4
_MAX_VERSION = 9_999  # a larger number was not written by this program


# Names until 2026-11-29; a spec keeps its own, of which the trial's id is made.
_RENAMED = {
    "turns": "blocks",
    "void_reason": "discard_reason",
    "generation_sec": "repetition_sec",
    "matching": "equivalence",
}
_STATES = {"void": "discarded", "insane": "failed_checks"}


def renamed(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a record under the names of today."""
    if kind in ("env", "spec"):
        return data
    current = {_RENAMED.get(name, name): value for name, value in data.items()}
    if kind == "result" and isinstance(blocks := current.get("blocks"), list):
        current["blocks"] = [
            renamed("block", block) if isinstance(block, dict) else block
            for block in blocks
        ]
    if kind == "plan" and isinstance(measuring := current.get("measuring"), dict):
        current["measuring"] = renamed("measuring", measuring)
    if kind == "status" and isinstance(state := current.get("status"), str):
        current["status"] = _STATES.get(state, state)
    return current


def upgrade(kind: str, data: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of a record in the format of the current version."""
    data = renamed(kind, data)
    version = data.get("schema_version")
    if (
        not isinstance(version, int)
        or isinstance(version, bool)
        or not 1 <= version <= _MAX_VERSION
    ):
        raise errors.CorruptRecordError(
            path,
            f"schema_version is {reprlib.repr(version)}, must be an integer, 1 or more",
        )
    if version > SCHEMA_VERSION:
        raise errors.NewerSchemaError(path, version, SCHEMA_VERSION)
    if version < OLDEST_VERSION:
        raise errors.OlderSchemaError(path, version, OLDEST_VERSION)
    if version == SCHEMA_VERSION:
        return data
    return _plan_fields(data) if kind == "plan" else _current(data)


def _current(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "schema_version": SCHEMA_VERSION}


def _plan_fields(data: dict[str, Any]) -> dict[str, Any]:
    """Adds to a plan what its metrics mean, and whether steps draw random numbers."""
    current = _current(data)
    equivalence, trials = data.get("equivalence"), data.get("trials")
    if isinstance(equivalence, dict):
        current["equivalence"] = {
            **equivalence,
            "trials": _trial_fields(equivalence.get("trials")),
        }
    if isinstance(trials, list):
        specs = [trial.get("spec") for trial in trials if isinstance(trial, dict)]
        names = {spec.get("workload") for spec in specs if isinstance(spec, dict)}
        current |= {
            "trials": _trial_fields(trials),
            "metrics": [
                facts
                for workload in sorted(map(str, names))
                for facts in _old_metrics(workload)
            ],
        }
        current.setdefault("draws_random_numbers", names == {"sngan"})
    return current


def _trial_fields(trials: Any) -> Any:
    if not isinstance(trials, list):
        return trials
    return [
        {**trial, "spec": _current(trial["spec"])}
        if isinstance(trial, dict) and isinstance(trial.get("spec"), dict)
        else trial
        for trial in trials
    ]


# What metrics of versions 4 and 5 mean; today plans say it.

_ALL = "the whole held-out split"
_EPISODES = "episodes without noise"
_IMAGES = "generated images against the training images"
_WINDOW = "over the measured window"
_TOLERANCE = 0.05
# Workload, name, title, unit, whether more is better, how it was measured. A rate of
# the window has its name as title.
_OLD_METRICS: list[tuple[str, str, str, str, bool | None, str]] = [
    ("resnet50", "top_1", "Top-1 accuracy", "ratio", True, _ALL),
    ("resnet50", "top_5", "Top-5 accuracy", "ratio", True, _ALL),
    ("sngan", "fid", "FID", "1", False, _IMAGES),
    ("sngan", "kid", "KID", "1", False, _IMAGES),
    ("sngan", "inception_score", "Inception Score", "1", True, "generated images"),
    ("sngan", "recognised", "Recognised", "ratio", True, "generated images"),
    ("d4pg", "episode_return", "Episode return", "return", True, _EPISODES),
    ("d4pg", "learner_steps_per_sec", "", "learner steps/s", True, _WINDOW),
    ("d4pg", "transitions_per_sec", "", "transitions/s", True, _WINDOW),
    ("d4pg", "clipped_target_share", "", "ratio", False, _WINDOW),
    ("d4pg", "environment_steps_per_sec", "", "environment steps/s", True, _WINDOW),
    ("d4pg", "learner_wait_share", "", "ratio", False, _WINDOW),
    ("d4pg", "finished_episodes", "", "episodes", None, _WINDOW),
    ("d4pg", "policy_lag", "", "learner steps", False, _WINDOW),
    ("d4pg", "refused_environment_steps", "", "environment steps", False, _WINDOW),
    ("d4pg", "replaced_actors", "", "actors", False, _WINDOW),
    ("d4pg", "replay_ratio", "", "transitions/step", None, _WINDOW),
    ("d4pg", "actor_idle_share", "", "ratio", False, _WINDOW),
]


def _old_metrics(workload: str) -> list[dict[str, Any]]:
    """Returns the facts as a plan stores them; none of a workload that is unknown."""
    return [
        {
            "name": name,
            "title": title
            or name.replace("_", " ").replace(" per sec", " per second").capitalize(),
            "unit": unit,
            "is_higher_better": is_higher_better,
            "tolerance": _TOLERANCE,
            "protocol": protocol,
            "is_of_window": protocol is _WINDOW,
        }
        for owner, name, title, unit, is_higher_better, protocol in _OLD_METRICS
        if owner == workload
    ]


MODELS: dict[str, type[models.Record]] = {
    "plan": models.Plan,
    "spec": models.TrialSpec,
    "env": models.Environment,
    "status": models.StatusRecord,
    "result": models.TrialResult,
}
"""File stem of a record in the store -> its model."""
PROTOCOL: Final = "client"
KINDS: Final = (*MODELS, PROTOCOL)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render(kind: str) -> str:
    """Returns the JSON Schema of one kind of record, as in the published file."""
    from results.records import protocol

    if kind == PROTOCOL:
        own: dict[str, Any] = protocol.schema()
    else:
        own = MODELS[kind].model_json_schema(mode="validation")
    schema = {"$schema": DIALECT, **own}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def write_all(folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes ``<kind>.schema.json`` for every kind and returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in KINDS:
        path = folder / f"{kind}.schema.json"
        path.write_text(render(kind), encoding="ascii", newline="\n")
        paths.append(path)
    return paths


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 2 if it is not called with one folder."""
    if len(arguments) != 1:
        sys.stderr.write("error: usage: python -m results.records.schema FOLDER\n")
        return 2
    for path in write_all(pathlib.Path(arguments[0])):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

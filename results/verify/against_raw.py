"""Compares what a study states with what its raw observations say.

Two levels: each ``result.json`` against the rank files of its trial
(``results/verify/raw_trial.py``), and the figures of the summary against the same
figures computed from the rank files by another path (``results/verify/recomputed.py``).

Observations must be equal to the last digit; sums to ``SUM_TOLERANCE``, and figures to
``FIGURE_TOLERANCE``, relative. Half widths that are drawn (unpaired groups) may differ
by ``DRAWN_TOLERANCE``. What has no raw observation is counted as such, and never as
verified.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from results.records.measuring import Control
from results.store import untrusted
from results.study.cases import CORRUPT, UNMATCHED, load_study, matching_entries
from results.verify import figures, gate_check, matches, raw_trial
from results.verify.check import Check, Mismatch

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping

    from results.store.study_store import Store
    from results.study.cases import Entry
    from results.verify.raw_trial import RawTrial

__all__ = ["Check", "Mismatch", "verify"]

SUM_TOLERANCE: Final = 1e-12
_SUMS = {"window_sec", "user_sec", "system_sec"}
_LOADS = {
    "foreign_cpu_fraction",
    "stolen_cpu_fraction",
    "run_delay_sec",
    "num_throttled",
}
_KINDS = {
    "ranks": "steps, losses, memory",
    "turns": "turns",
    "window_sec": "windows",
    "num_measured_steps": "windows",
    "sanity": "checks",
    "quality": "quality",
    "curve": "quality",
    "window_metrics": "quality",
    "changes": "matching",
    "readings": "readings",
}
_PROGRAM = "programs"
_LOAD = "load within turns"
_STATUS = "statuses"
_NO_VALUE: tuple[Any, ...] = (None, "", 0, [], {})


def verify(store: Store) -> Check:
    """Recomputes all that a study states, and says what differs."""
    study = load_study(store)
    check = Check()
    for problem in study.problems:
        check.differ("records", problem.label, "readable", problem.reason)
    entries = [entry for entry in study.entries if entry.state != CORRUPT]
    raws = _verify_trials(store, entries, check)
    figures.compare(study, raws, check)
    gate_check.compare(study, raws, check)
    matching = store.matching
    raws = _verify_trials(matching, matching_entries(matching), check)
    matches.compare(study, raws, check)
    return check


def _verify_trials(
    store: Store, entries: Iterable[Entry], check: Check
) -> dict[str, RawTrial]:
    """Compares the trials that have a result; returns their raw observations by id."""
    raws = {}
    for entry in entries:
        if entry.trial is None or entry.trial.result is None:
            continue
        raw = _read(store, entry, check)
        if raw is not None:
            raws[entry.trial_id] = raw
            _verify_trial(store, entry, raw, check)
    return raws


def _read(store: Store, entry: Entry, check: Check) -> RawTrial | None:
    folder = store.trial_dir(entry.trial_id)
    label = f"trials/{entry.trial_id}"
    try:
        return raw_trial.read_trial(
            folder,
            entry.spec.num_warmup_steps,
            is_solo=entry.spec.control is Control.SOLO,
        )
    except FileNotFoundError:
        check.lack("trials", f"{label}: no rank_0.jsonl")
    except raw_trial.RawError as error:
        check.differ("trials", label, "its raw observations", str(error))
    return None


def _verify_trial(store: Store, entry: Entry, raw: RawTrial, check: Check) -> None:
    folder = store.trial_dir(entry.trial_id)
    label = f"trials/{entry.trial_id}/result.json"
    check.agree("trials")
    stated, spec = (_plain(folder / f"{name}.json") for name in ("result", "spec"))
    derived: dict[str, Any] = {
        **raw.result,
        "schema_version": spec.get("schema_version"),
    }
    turns = stated.get("turns", [])
    if len(turns) == len(derived["turns"]):
        for index, turn in enumerate(turns):
            _verify_load(turn, derived["turns"][index], f"{label} turn {index}", check)
        stated["turns"] = [_without_load(turn) for turn in turns]
    derived["turns"] = [_without_load(turn) for turn in derived["turns"]]
    if stated.get("readings"):  # their words are not observations, their number is
        stated["readings"].setdefault("advances", [])  # none in earlier studies
        remarks = stated["readings"].pop("remarks", ())
        stated["readings"]["num_remarks"] = len(remarks)
    for name in sorted(stated.keys() | derived.keys()):
        kind = _KINDS.get(name, _PROGRAM)
        _compare(stated.get(name), derived.get(name), kind, f"{label} {name}", check)
    if raw.has_loads:
        _verify_mean_load(entry, raw, check)
    is_usable = raw.is_complete and (
        not turns or any(not turn.get("void_reason") for turn in turns)
    )
    if not turns and any(map(raw_trial.is_gpu_void, _gpu_uses(folder))):
        is_usable = False
    check.compare(
        _STATUS,
        f"trials/{entry.trial_id}/status.json status",
        # A trial that is well by itself counts only if its replicas match one.
        stated=entry.is_ok or entry.state == UNMATCHED,
        derived=is_usable,
    )


def _gpu_uses(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns what a trial's GPUs did in its window; empty without GPUs."""
    return list(_plain(folder / "env.json").get("gpu_uses", ()))


def _plain(path: pathlib.Path) -> dict[str, Any]:
    """Returns a record that was found readable, without its model; empty if absent."""
    return dict(untrusted.parsed(untrusted.read_text(path) or "{}"))


def _without_load(turn: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {*_LOADS, "gpus", "num_cores", "void_reason", "is_void"}
    return {name: value for name, value in turn.items() if name not in left_out}


def _compare(stated: Any, derived: Any, kind: str, label: str, check: Check) -> None:
    """Compares nested plain data, each number and text on its own."""
    if isinstance(stated, dict) and isinstance(derived, dict):
        for name in sorted(stated.keys() | derived.keys()):
            _compare(
                stated.get(name), derived.get(name), kind, f"{label}.{name}", check
            )
    elif isinstance(stated, list) and isinstance(derived, list):
        if len(stated) != len(derived):
            check.differ(
                kind, label, f"{len(stated)} entries", f"{len(derived)} entries"
            )
            return
        for index, (one, other) in enumerate(zip(stated, derived, strict=True)):
            _compare(one, other, kind, f"{label}[{index}]", check)
    elif stated in _NO_VALUE and derived in _NO_VALUE:
        check.agree(kind)
    elif label.rpartition(".")[2].rpartition(" ")[2] in _SUMS:
        check.compare(kind, label, stated, derived, tolerance=SUM_TOLERANCE)
    else:
        check.compare(kind, label, stated, derived)


def _verify_load(
    stated: Mapping[str, Any], derived: Mapping[str, Any], label: str, check: Check
) -> None:
    """Compares the load within a turn, and whether the turn is void for it."""
    if derived["is_void"] is None:
        check.lack(_LOAD, f"{label}: no turns.jsonl")
        return
    for name in sorted(_LOADS):
        check.compare(_LOAD, f"{label}.{name}", stated.get(name), derived[name])
    if stated.get("gpus") or derived["gpus"]:
        gpus = stated.get("gpus", [])
        _compare(gpus, derived["gpus"], _LOAD, f"{label}.gpus", check)
    reason = stated.get("void_reason", "")
    cores = derived["num_cores"]
    of_one = raw_trial.LARGEST_OF_ONE_CORE + raw_trial.OF_EVERY_CORE * cores
    numbers = {
        cores,
        round(100 * cores * (stated.get("foreign_cpu_fraction") or 0)),
        round(100 * of_one),
        round(100 * (stated.get("foreign_cpu_fraction") or 0)),
        round(100 * (stated.get("stolen_cpu_fraction") or 0)),
        round(100 * raw_trial.LARGEST_FOREIGN),
        round(100 * raw_trial.LARGEST_STOLEN),
        stated.get("num_throttled"),
        stated.get("num_retraces"),
    }
    for use in stated.get("gpus", ()):
        numbers |= {use["index"], use["num_foreign_processes"]}
    is_explained = {int(text) for text in re.findall(r"\d+", reason)} <= numbers
    check.compare(
        _LOAD,
        f"{label}.void_reason",
        stated=(bool(reason), is_explained),
        derived=(derived["is_void"], True),
    )


def _verify_mean_load(entry: Entry, raw: RawTrial, check: Check) -> None:
    """Compares the load of a trial in a relay with the mean over its valid turns."""
    turns = raw.result["turns"]
    if not turns or entry.trial is None or entry.trial.env is None:
        return
    used = [turn for turn in turns if not turn["is_void"]] or turns
    for name in ("foreign_cpu_fraction", "stolen_cpu_fraction"):
        known = [
            (turn[name], turn["end_ns"] - turn["start_ns"])
            for turn in used
            if turn[name] is not None
        ]
        mean = None
        if known:
            total = math.fsum(duration for _, duration in known)
            mean = math.fsum(value * duration for value, duration in known) / total
        check.compare(
            _LOAD,
            f"trials/{entry.trial_id}/env.json {name}",
            getattr(entry.trial.env, name),
            mean,
            tolerance=SUM_TOLERANCE,
        )

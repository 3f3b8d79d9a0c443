"""Derives the record of a trial anew from what its processes wrote, and compares both.

Nothing here uses the code that wrote the records, nor their models. Observations must
be equal to the last digit, sums to ``SUM_TOLERANCE``.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from results.errors import ResultsError
from results.records import schema
from results.records.measuring import Control
from results.store import untrusted
from results.study.cases import UNMATCHED

if TYPE_CHECKING:
    import pathlib

    from results.store.study_store import Store
    from results.study.cases import Entry
    from results.verify.check import Check

    Fields = dict[str, Any]
    Rank = Mapping[str, list[Fields]]  # The lines of one process, by kind.
    Raws = dict[str, "RawTrial"]  # By id of the trial.

SUM_TOLERANCE: Final = 1e-12
_LIMITS = LARGEST_FOREIGN, LARGEST_STOLEN = 0.03, 0.01
LARGEST_OF_ONE_CORE, OF_EVERY_CORE = 0.10, 0.002
SLOWED_BY_THE_MACHINE = {"hardware slowdown", "heat", "heat (hardware)", "power brake"}
FEWEST_OF_WINDOW = 3  # numbers that a program printed after its warm-up
_RECORDS, QUALITY = "records", "quality"
_LEARNED = re.compile(r"quality\[\d+\]\.(?:value|low|high)")  # by a trial, in the end
_FRACTIONS = ("foreign_cpu_fraction", "stolen_cpu_fraction")
_LOADS = (*_FRACTIONS, "run_delay_sec", "num_throttled")
_FAULTS = ("minor_faults", "major_faults", "involuntary_switches", "num_retraces")
_SUMS = ("user_sec", "system_sec", *_FAULTS)
_INEXACT = ("window_sec", "user_sec", "system_sec")
_NO_VALUE = (None, "", 0)


class RawError(ValueError):
    """Raw observations that are missing or contradict themselves; says which."""


class RawTrial(NamedTuple):
    """What the raw observations of a trial say."""

    # Like ``result.json``; blocks have ``is_discarded``, None where load is unknown.
    result: Fields
    is_complete: bool  # Whether all processes finished, and all checks passed.


def compare(store: Store, entries: Iterable[Entry], check: Check) -> Raws:
    raws: Raws = {}
    for entry in entries:
        if entry.trial is None or entry.trial.result is None:
            continue
        folder, label = store.trial_dir(entry.trial_id), f"trials/{entry.trial_id}"
        is_independent = entry.spec.control is Control.INDEPENDENT
        try:
            raw = read_trial(
                folder, entry.spec.num_warmup_steps, is_independent=is_independent
            )
        except FileNotFoundError:
            check.lack("trials", f"{label}: no rank_0.jsonl")
        except RawError as error:
            check.differ("trials", label, "its raw observations", str(error))
        else:
            raws[entry.trial_id] = raw
            check.agree("trials")
            _compare_records(folder, label, entry, raw, check)
    return raws


def _compare_records(
    folder: pathlib.Path, label: str, entry: Entry, raw: RawTrial, check: Check
) -> None:
    stated, spec, env = (
        untrusted.parsed(untrusted.read_text(folder / f"{name}.json") or "{}")
        for name in ("result", "spec", "env")
    )
    stated = schema.renamed("result", stated)
    blocks, raw_blocks = stated.get("blocks", []), raw.result["blocks"]
    is_valid = any(not block.get("discard_reason") for block in blocks)
    if not blocks:
        is_valid = not any(map(_is_gpu_discarded, env.get("gpu_uses", ())))
    # A trial that is well by itself counts only if its replicas match one.
    is_used = entry.is_ok or entry.state == UNMATCHED
    where = f"{label}/status.json status"
    check.compare(_RECORDS, where, is_used, raw.is_complete and is_valid)
    label = f"{label}/result.json"
    for index, (block, own) in enumerate(zip(blocks, raw_blocks, strict=False)):
        reason = block.pop("discard_reason", "")
        if own["is_discarded"] is None:
            check.lack(_RECORDS, f"{label} block {index}: no blocks.jsonl")
            # Nothing else says so.
            own["is_discarded"] = block["is_discarded"] = bool(reason)
            for name in (*_LOADS, "gpus"):
                block.pop(name, None)
        else:
            numbers = {int(text) for text in re.findall(r"\d+", reason)}
            block["discard_reason"] = sorted(numbers - _numbers_in_reason(own))
            block["is_discarded"], block["num_cores"] = bool(reason), own["num_cores"]
    if readings := stated.get("readings"):  # the words are no observations
        readings["num_remarks"] = len(readings.pop("remarks", ()))
    derived = {**raw.result, "schema_version": spec.get("schema_version")}
    one, other = (
        {name: value for name, value in leaves(fields) if value not in _NO_VALUE}
        for fields in (stated, derived)
    )
    for name in sorted({**one, **other}):
        tolerance = SUM_TOLERANCE if name.endswith(_INEXACT) else 0.0
        kind = QUALITY if _LEARNED.fullmatch(name) else _RECORDS
        values = one.get(name), other.get(name)
        check.compare(kind, f"{label} {name}", *values, tolerance)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value in a record with its place, such as ``cases[0].n``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{number}]")
    else:
        yield name, value


def _numbers_in_reason(block: Fields) -> set[int]:
    """Returns the numbers that a reason why a block is discarded can have."""
    cores, gpus = block["num_cores"], block["gpus"]
    foreign, stolen = (block[name] or 0.0 for name in _FRACTIONS)
    of_one_core = foreign * cores, LARGEST_OF_ONE_CORE + OF_EVERY_CORE * cores
    shares = (*_LIMITS, *of_one_core, foreign, stolen)
    counts = {cores, block["num_throttled"], block["num_retraces"]}
    counts |= {use[name] for use in gpus for name in ("index", "num_foreign_processes")}
    return counts | {round(100 * share) for share in shares}


def read_trial(
    folder: pathlib.Path, num_warmup_steps: int, *, is_independent: bool = False
) -> RawTrial:
    all_names = untrusted.names_in(folder)
    rank_files = {name for name in all_names if re.fullmatch(r"rank_.*\.jsonl", name)}
    names = [f"rank_{rank}.jsonl" for rank in range(len(rank_files))]
    if not rank_files:
        raise FileNotFoundError(f"no rank file in {folder.name}")
    if rank_files != {*names}:
        raise RawError(f"rank files are {sorted(rank_files)}")
    lines_of = [_read_lines(folder / name) for name in names]
    try:
        ranks = [_by_kind(lines) for lines in lines_of]
        return _derive(folder, ranks, num_warmup_steps, is_independent=is_independent)
    except (RawError, ResultsError):
        raise
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RawError(f"a line is malformed: {what}") from error


def _read_lines(path: pathlib.Path) -> list[Fields]:
    try:
        content = untrusted.read_bytes(path) or b""
    except untrusted.DamagedFileError as error:
        raise RawError(f"{path.name} is unreadable: {error}") from error
    lines = []
    text = content.decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        fields = None
        with contextlib.suppress(untrusted.DamagedFileError):
            fields = untrusted.parsed(line)
        if not isinstance(fields, dict):
            raise RawError(f"{path.name} line {number} is no JSON object")
        lines.append(fields)
    return lines


def _by_kind(lines: Iterable[Fields]) -> Rank:
    """Returns what a process wrote, by kind; points know how many steps came before."""
    by_kind: dict[str, list[Fields]] = collections.defaultdict(list)
    for line in lines:
        kind = line.pop("kind")
        by_kind[kind].append(line)
        if kind == "point":
            line["num_before"] = len(by_kind["step"])
    return by_kind


def _derive(
    folder: pathlib.Path,
    ranks: Sequence[Rank],
    num_warmup_steps: int,
    *,
    is_independent: bool,
) -> RawTrial:
    first, (facts,) = ranks[0], ranks[0]["facts"]
    is_done = all(each["done"] and not each["failure"] for each in ranks)
    result = {
        "trial_id": folder.name,
        "example_unit": facts["example_unit"],
        "num_parameters": facts["num_parameters"],
        "flops_per_example": facts.get("flops_per_example"),
        "global_batch_size": facts["global_batch_size"],
        "window_metrics": first["window_metric"],
    }
    if first["reading"]:
        (only,) = ranks
        result |= _reading_fields(only, facts, num_warmup_steps)
        return RawTrial(result, is_done)
    if is_independent:
        batches = (each["facts"][0]["global_batch_size"] for each in ranks)
        result["global_batch_size"] = sum(batches)
    times = [
        _rank_times(rank, each, num_warmup_steps) for rank, each in enumerate(ranks)
    ]
    blocks = _blocks(folder, ranks)
    # Clocks of several machines differ: then it is the longest rank's span.
    spans = [(each["window_start_ns"], each["window_end_ns"]) for each in times]
    if blocks:
        spans = [(block["start_ns"], block["end_ns"]) for block in blocks]
    elif len({line["host"] for each in ranks for line in each["clock"]}) > 1:
        spans = [max(spans, key=lambda span: span[1] - span[0])]
    else:
        spans = [(max(start for start, _ in spans), max(end for _, end in spans))]
    sanity = [check for each in ranks for check in each["sanity"]]
    result |= {
        "num_measured_steps": len(times[0]["step_time_sec"]),
        "window_sec": sum(end - start for start, end in spans) / 1e9,
        "blocks": blocks,
        "ranks": times,
        "sanity": sanity,
        "quality": first["quality"],
        "curve": _curve(first, result["global_batch_size"]),
        "changes": first["change"],
        "collectives": first["explain"][-1]["collectives"] if first["explain"] else "",
    }
    return RawTrial(result, is_done and all(check["is_passed"] for check in sanity))


def _duration(step: Fields) -> float:
    return float((step["end_ns"] - step["start_ns"]) / 1e9)


def _rank_times(rank: int, lines: Rank, num_warmup_steps: int) -> Fields:
    steps = lines["step"]
    measured = [step for step in steps if step["phase"] == "measure"]
    if [step["index"] for step in steps] != list(range(len(steps))):
        raise RawError(f"the steps of rank {rank} are not numbered from 0 on")
    phases, now_ns = {line["phase"]: line["ns"] for line in lines["phase"]}, 0
    for step in steps:
        begins, start_ns = phases.get(step["phase"]), step["start_ns"]
        if begins is None or not max(now_ns, begins) <= start_ns <= step["end_ns"]:
            raise RawError(
                f"step {step['index']} of rank {rank} overlaps another, or lies "
                f"outside of phase {step['phase']}"
            )
        now_ns = step["end_ns"]
    left = measured
    for block in lines["turn"]:
        own, left = left[: block["num_steps"]], left[block["num_steps"] :]
        if len(own) != block["num_steps"] or not (
            own
            and block["start_ns"] <= own[0]["start_ns"]
            and block["end_ns"] == own[-1]["end_ns"]
        ):
            raise RawError(
                f"the block of round {block['round_index']} of rank {rank} does not "
                "have the times of its steps"
            )
    if lines["turn"] and left:
        raise RawError(f"rank {rank} has measured steps outside of blocks")
    losses = [float(step["loss"]) for step in steps if step["loss"] is not None]
    first, peaks = lines["first_step_done"][0], lines["peak"]
    is_alone = first.get("is_alone", True)
    return {
        "rank": rank,
        "time_to_first_step_sec": first["time_to_first_step_sec"] if is_alone else 0.0,
        "warmup_step_time_sec": [*map(_duration, steps[:num_warmup_steps])],
        "step_time_sec": [*map(_duration, measured)],
        "window_start_ns": measured[0]["start_ns"],
        "window_end_ns": measured[-1]["end_ns"],
        "losses": [*itertools.takewhile(math.isfinite, losses)],
        "peak_memory_bytes": lines["memory"][0]["peak_memory_bytes"],
        "peak_flops_per_sec": peaks[0]["flops_per_sec"] if peaks else None,
    }


def _blocks(folder: pathlib.Path, ranks: Sequence[Rank]) -> list[Fields]:
    """Returns the blocks of all processes together, and the load within them."""
    path = folder / "blocks.jsonl"
    if not untrusted.is_there(path):
        path = folder / "turns.jsonl"  # its name until 2026-11-29
    loads = _read_lines(path) if untrusted.is_there(path) else None
    of_ranks = [each["turn"] for each in ranks]
    names, of_loads, *others = (
        [(block["round_index"], block["attempt"]) for block in blocks]
        for blocks in (of_ranks[0], loads or (), *of_ranks[1:])
    )
    if any(each != names for each in others):
        raise RawError("ranks have different blocks")
    if loads is not None and of_loads != names:
        raise RawError("blocks.jsonl and the rank files have different blocks")
    if len(cores := {load.get("num_cores") for load in loads or ()}) > 1:
        what = " and ".join(map(str, cores))
        raise RawError(f"blocks.jsonl has blocks of {what} cores")
    read = []
    for index, parts in enumerate(zip(*of_ranks, strict=True)):
        block = {name: sum(each.get(name, 0) for each in parts) for name in _SUMS}
        block |= {
            name: max(each[name] for each in parts) for name in ("start_ns", "end_ns")
        }
        of_all = ("round_index", "attempt", "num_steps")
        block |= {name: parts[0][name] for name in of_all}
        load = {"num_cores": 0, "gpus": [], "is_sustained": False}
        if loads is not None:
            load |= loads[index]
            block |= {name: load[name] for name in (*_LOADS, "num_cores", "gpus")}
        block["is_sustained"] = load["is_sustained"]
        block["is_discarded"] = (
            None if loads is None else is_discarded(load, block["num_retraces"])
        )
        read.append(block)
    return read


def is_discarded(load: Fields, num_retraces: int) -> bool:
    """Whether a block does not count for what others did, or for retracing."""
    foreign, stolen = (load[name] or 0.0 for name in _FRACTIONS)
    cores = load.get("num_cores", 0)  # earlier studies judged the mean alone
    return bool(
        foreign > LARGEST_FOREIGN + load["foreign_resolution"]
        or cores * foreign - load.get("one_core_resolution", 0.0)
        > LARGEST_OF_ONE_CORE + OF_EVERY_CORE * cores
        or stolen > LARGEST_STOLEN + load["stolen_resolution"]
        or load["num_throttled"]
        or any(map(_is_gpu_discarded, load.get("gpus", ())))
        or num_retraces
    )


def _is_gpu_discarded(use: Fields) -> bool:
    """Whether a GPU failed, others used it, or the machine lowered its clock."""
    is_slowed = SLOWED_BY_THE_MACHINE.intersection(use["slowed_by"])
    return bool(use.get("faults") or use["num_foreign_processes"] or is_slowed)


def _curve(first: Rank, batch: int) -> list[Fields]:
    """Returns the points of a quality run; raises unless its steps agree with them."""
    durations = [*map(_duration, first["step"])]
    for point in first["point"]:
        number = point.pop("num_before")
        time_sec = math.fsum(durations[1:number])
        if (number, number * batch) != (point["num_steps"], point["num_examples"]) or (
            not math.isclose(point["train_time_sec"], time_sec, rel_tol=SUM_TOLERANCE)
        ):
            raise RawError(
                f"the point after {point['num_steps']} steps does not have the "
                f"counts or the time of the {number} steps before it"
            )
    return first["point"]


def _reading_fields(lines: Rank, facts: Fields, num_warmup: int) -> Fields:
    """Returns the rest of the result of a program that printed numbers."""
    (used,), batch = lines["used"], facts["global_batch_size"]
    replicas = facts["num_replicas"]
    seconds_of: Callable[[float], float] = {
        "step_time": lambda value: value,
        "step_time_ms": lambda value: value / 1000,
        "throughput": lambda value: batch / value,
        "throughput_per_replica": lambda value: batch / (value * replicas),
        "steps_per_sec": lambda value: 1 / value,
        "epoch_time": lambda value: value,
        "wall": lambda value: value,
    }[facts["metric"]]
    printed = [line["ns"] for line in lines["reading"]]
    # A rate of 0 is none yet, and stands in the warm-up only.
    times = [line["value"] and seconds_of(line["value"]) for line in lines["reading"]]
    is_wall = facts["metric"] == "wall"
    first = 0 if is_wall else num_warmup
    number, evidence = len(times) - first, "window"
    num_bunched = sum(a == b for a, b in itertools.pairwise(printed[first:]))
    start_ns = printed[max(first - 1, 0)]
    if is_wall:
        start_ns = printed[0] - round(times[0] * 1e9)
    elif number < FEWEST_OF_WINDOW:
        first, evidence = len(times) - 1, "last"
        start_ns = printed[max(first - 1, 0)]
    elif not printed[-1] or 2 * num_bunched > number:
        evidence = "rows"
    has_why = evidence == "last" or (evidence == "rows" and printed[-1])
    return {
        "num_measured_steps": len(times) - first,
        "window_sec": math.fsum(times[first:]),
        "blocks": [],
        "ranks": [
            {
                "warmup_step_time_sec": [time for time in times[:first] if time],
                "step_time_sec": times[first:],
                "window_start_ns": start_ns,
                "window_end_ns": printed[-1],
                "peak_memory_bytes": lines["memory"][0]["peak_memory_bytes"],
            }
        ],
        "readings": {
            **{name: used[name] for name in ("num_processes", "busy_cores")},
            "evidence": evidence,
            "num_readings": len([time for time in times if time]),
            "advances": used.get("advances", []),
            "num_remarks": bool(has_why) + len(used["remarks"]),
        },
    }

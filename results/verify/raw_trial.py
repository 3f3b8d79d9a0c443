"""Derives the result of a trial anew from its raw observations.

For ``verify``: nothing here uses the code that wrote the records (``harness/run``), nor
their models. Input are the files ``rank_<k>.jsonl`` and ``turns.jsonl`` of a trial
(``harness/trial/rank_file.py`` and ``harness/run/turn_file.py`` describe their lines),
output is plain data that looks like ``result.json``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from results.errors import ResultsError
from results.store import untrusted
from results.verify import raw_readings

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

Fields = dict[str, Any]

LARGEST_FOREIGN = 0.03
LARGEST_STOLEN = 0.01
LARGEST_OF_ONE_CORE, OF_EVERY_CORE = 0.10, 0.002
SLOWED_BY_THE_MACHINE = frozenset(
    ("hardware slowdown", "heat", "heat (hardware)", "power brake")
)
_RANK_FILE = re.compile(r"rank_.*\.jsonl")
_SUMS = ("user_sec", "system_sec", "minor_faults", "major_faults")
_MORE_SUMS = ("involuntary_switches", "num_retraces")
_LOADS = ("foreign_cpu_fraction", "stolen_cpu_fraction", "run_delay_sec")


class RawError(ValueError):
    """Raw observations that are missing or contradict themselves; says which."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawTrial:
    """What the raw observations of a trial say."""

    # Looks like ``result.json``. Turns have ``is_void`` in place of the reason, None
    # where the load within the turns was not stored.
    result: Fields
    is_complete: bool  # Whether all processes finished, and all checks passed.
    # Whether the load within the turns was stored, or there are no turns.
    has_loads: bool


def read_trial(
    folder: pathlib.Path, num_warmup_steps: int, *, is_solo: bool = False
) -> RawTrial:
    """Reads the raw observations of a trial that has a result."""
    # Ranks in numeric order, which differs from that of names from ten on.
    names = (n for n in untrusted.names_in(folder) if _RANK_FILE.fullmatch(n))
    paths = [folder / name for name in sorted(names, key=lambda n: (len(n), n))]
    if not paths:
        raise FileNotFoundError(f"no rank file in {folder.name}")
    if [f"rank_{k}.jsonl" for k in range(len(paths))] != [path.name for path in paths]:
        raise RawError(f"rank files are {[path.name for path in paths]}")
    ranks = [_read_lines(path) for path in paths]
    try:
        return _derive(folder, ranks, num_warmup_steps, is_solo=is_solo)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, (RawError, ResultsError)):
            raise
        raise RawError(f"a line is malformed: {type(error).__name__}: {error}") from (
            error
        )


def _read_lines(path: pathlib.Path) -> list[Fields]:
    lines = []
    try:
        content = untrusted.read_bytes(path) or b""
    except untrusted.DamagedFileError as error:
        raise RawError(f"{path.name} is unreadable: {error}") from error
    text = content.decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            fields = untrusted.parsed(line)
        except untrusted.DamagedFileError as error:
            raise RawError(f"{path.name} line {number} is no JSON") from error
        if not isinstance(fields, dict):
            raise RawError(f"{path.name} line {number} is no JSON object")
        lines.append(fields)
    return lines


def _of_kind(lines: Sequence[Fields], kind: str) -> list[Fields]:
    return [
        {name: value for name, value in line.items() if name != "kind"}
        for line in lines
        if line["kind"] == kind
    ]


def _derive(
    folder: pathlib.Path,
    ranks: Sequence[Sequence[Fields]],
    num_warmup_steps: int,
    *,
    is_solo: bool,
) -> RawTrial:
    (facts,) = _of_kind(ranks[0], "facts")
    if _of_kind(ranks[0], "reading"):
        (lines,) = ranks
        return RawTrial(
            result=raw_readings.derive(folder.name, lines, num_warmup_steps),
            is_complete=bool(_of_kind(lines, "done"))
            and not _of_kind(lines, "failure"),
            has_loads=True,
        )
    times = [
        _rank_times(rank, lines, num_warmup_steps) for rank, lines in enumerate(ranks)
    ]
    turns, has_loads = _turns(folder, ranks)
    if turns:
        window_ns = sum(turn["end_ns"] - turn["start_ns"] for turn in turns)
    else:
        window_ns = _window_ns(ranks, times)
    sanity = [check for lines in ranks for check in _of_kind(lines, "sanity")]
    explain = _of_kind(ranks[0], "explain")
    batch = facts["global_batch_size"]
    if is_solo:
        batch = sum(_of_kind(lines, "facts")[0]["global_batch_size"] for lines in ranks)
    result = {
        "trial_id": folder.name,
        "example_unit": facts["example_unit"],
        "num_parameters": facts["num_parameters"],
        "flops_per_example": facts.get("flops_per_example"),
        "global_batch_size": batch,
        "num_measured_steps": len(times[0]["step_time_sec"]),
        "window_sec": window_ns / 1e9,
        "turns": turns,
        "ranks": times,
        "sanity": sanity,
        "quality": _of_kind(ranks[0], "quality"),
        "curve": _curve(ranks[0], batch),
        "window_metrics": _of_kind(ranks[0], "window_metric"),
        "changes": _of_kind(ranks[0], "change"),
        "collectives": explain[-1]["collectives"] if explain else "",
    }
    is_done = all(
        _of_kind(lines, "done") and not _of_kind(lines, "failure") for lines in ranks
    )
    return RawTrial(
        result=result,
        is_complete=is_done and all(check["is_passed"] for check in sanity),
        has_loads=has_loads,
    )


_ENDS = ("start", "end")


def _window_ns(ranks: Sequence[Sequence[Fields]], times: Sequence[Fields]) -> int:
    """Latest start to latest end; of several machines, the longest of a rank.

    Their clocks differ; ranks that wait for each other measure the same time.
    """
    clocks = {line["host"] for lines in ranks for line in _of_kind(lines, "clock")}
    if len(clocks) > 1:
        return max(rank["window_end_ns"] - rank["window_start_ns"] for rank in times)
    start_ns, end_ns = (max(r[f"window_{end}_ns"] for r in times) for end in _ENDS)
    return int(end_ns - start_ns)


def _duration(step: Fields) -> float:
    return float((step["end_ns"] - step["start_ns"]) / 1e9)


def _rank_times(rank: int, lines: Sequence[Fields], num_warmup_steps: int) -> Fields:
    steps = _of_kind(lines, "step")
    if [step["index"] for step in steps] != list(range(len(steps))):
        raise RawError(f"the steps of rank {rank} are not numbered from 0 on")
    _check_order(rank, steps, lines)
    measured = [step for step in steps if step["phase"] == "measure"]
    losses = [float(step["loss"]) for step in steps if step["loss"] is not None]
    bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
    first = _of_kind(lines, "first_step_done")[0]
    peaks = _of_kind(lines, "peak")
    return {
        "rank": rank,
        "time_to_first_step_sec": (
            first["time_to_first_step_sec"] if first.get("is_alone", True) else 0.0
        ),
        "warmup_step_time_sec": [_duration(s) for s in steps[:num_warmup_steps]],
        "step_time_sec": [_duration(step) for step in measured],
        "window_start_ns": measured[0]["start_ns"],
        "window_end_ns": measured[-1]["end_ns"],
        "losses": losses[: bad[0]] if bad else losses,
        "peak_memory_bytes": _of_kind(lines, "memory")[0]["peak_memory_bytes"],
        "peak_flops_per_sec": peaks[0]["flops_per_sec"] if peaks else None,
    }


def _check_order(rank: int, steps: Sequence[Fields], lines: Sequence[Fields]) -> None:
    """Raises unless steps follow one another, each in the phase that it names."""
    phases = {line["phase"]: line["ns"] for line in _of_kind(lines, "phase")}
    now_ns = 0
    for step in steps:
        begins = phases.get(step["phase"])
        if (
            begins is None
            or not max(now_ns, begins) <= step["start_ns"] <= (step["end_ns"])
        ):
            raise RawError(
                f"step {step['index']} of rank {rank} overlaps another, or lies "
                f"outside of phase {step['phase']}"
            )
        now_ns = step["end_ns"]


def _turns(
    folder: pathlib.Path, ranks: Sequence[Sequence[Fields]]
) -> tuple[list[Fields], bool]:
    """Returns the turns, and whether the load within them was stored."""
    of_ranks = [_of_kind(lines, "turn") for lines in ranks]
    names = [[(turn["round_index"], turn["attempt"]) for turn in of] for of in of_ranks]
    if any(of != names[0] for of in names):
        raise RawError("ranks have different turns")
    for rank, turns in enumerate(of_ranks):
        if turns:
            _check_turns(rank, turns, _of_kind(ranks[rank], "step"))
    path = folder / "turns.jsonl"
    loads: list[Fields] | None = _read_lines(path) if untrusted.is_there(path) else None
    if loads is not None and names[0] != [
        (load["round_index"], load["attempt"]) for load in loads
    ]:
        raise RawError("turns.jsonl and the rank files have different turns")
    if len(cores := {load.get("num_cores") for load in loads or ()}) > 1:
        raise RawError(
            f"turns.jsonl has turns of {' and '.join(map(str, cores))} cores"
        )
    found = []
    for index, together in enumerate(zip(*of_ranks, strict=True)):
        turn = {
            "round_index": together[0]["round_index"],
            "attempt": together[0]["attempt"],
            "start_ns": max(part["start_ns"] for part in together),
            "end_ns": max(part["end_ns"] for part in together),
            "num_steps": together[0]["num_steps"],
            "is_sustained": False,
        }
        for name in (*_SUMS, *_MORE_SUMS):
            turn[name] = sum(part.get(name, 0) for part in together)
        turn["is_void"] = None
        if loads is not None:
            load = loads[index]
            turn |= {name: load[name] for name in (*_LOADS, "num_throttled")}
            turn["num_cores"] = load.get("num_cores", 0)
            turn["gpus"] = load.get("gpus", [])
            turn["is_sustained"] = load.get("is_sustained", False)
            turn["is_void"] = _is_void(load, turn["num_retraces"])
        found.append(turn)
    return found, loads is not None or not found


def _check_turns(rank: int, turns: Sequence[Fields], steps: Sequence[Fields]) -> None:
    """Raises unless the measured steps of a rank are those of its turns."""
    measured = iter([step for step in steps if step["phase"] == "measure"])
    for turn in turns:
        own = [next(measured, None) for _ in range(turn["num_steps"])]
        if None in own or not (
            turn["start_ns"] <= own[0]["start_ns"]  # type: ignore[index]
            and own[-1]["end_ns"] == turn["end_ns"]  # type: ignore[index]
        ):
            raise RawError(
                f"the turn of round {turn['round_index']} of rank {rank} does not have "
                "the times of its steps"
            )
    if next(measured, None) is not None:
        raise RawError(f"rank {rank} has measured steps outside of turns")


def _is_void(load: Fields, num_retraces: int) -> bool:
    foreign, stolen = load["foreign_cpu_fraction"], load["stolen_cpu_fraction"]
    cores = load.get("num_cores", 0)  # earlier studies judged the mean alone
    return bool(
        (foreign or 0.0) > LARGEST_FOREIGN + load["foreign_resolution"]
        or (cores * (foreign or 0.0) - load.get("one_core_resolution", 0.0))
        > LARGEST_OF_ONE_CORE + OF_EVERY_CORE * cores
        or (stolen or 0.0) > LARGEST_STOLEN + load["stolen_resolution"]
        or load["num_throttled"]
        or any(is_gpu_void(use) for use in load.get("gpus", ()))
        or num_retraces
    )


def is_gpu_void(use: Fields) -> bool:
    """Whether others used a GPU, or the machine lowered its clock."""
    return bool(
        use["num_foreign_processes"]
        or SLOWED_BY_THE_MACHINE.intersection(use["slowed_by"])
    )


def _curve(lines: Sequence[Fields], global_batch_size: int) -> list[Fields]:
    """Returns the points of a quality run; raises unless its steps agree with them."""
    curve, durations = [], []
    for line in lines:
        if line["kind"] == "step":
            durations.append(_duration(line))
        elif line["kind"] == "point":
            point = {name: value for name, value in line.items() if name != "kind"}
            counts = len(durations), len(durations) * global_batch_size
            time_sec = math.fsum(durations[1:])
            if counts != (point["num_steps"], point["num_examples"]) or not (
                math.isclose(point["train_time_sec"], time_sec, rel_tol=1e-12)
            ):
                raise RawError(
                    f"the point after {point['num_steps']} steps does not have the "
                    f"counts or the time of the {len(durations)} steps before it"
                )
            curve.append(point)
    return curve

"""Compares the figures of a summary with the same figures from raw trials."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from results.figures import relay
from results.figures.summary import summarize
from results.records.models import Control, Order
from results.verify import lost, recomputed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.study.cases import Entry, Study
    from results.verify.check import Check
    from results.verify.raw_trial import RawTrial
    from results.verify.recomputed import Figure, Rates

FIGURE_TOLERANCE: Final = 1e-9
DRAWN_TOLERANCE: Final = 0.05


class _MissingError(LookupError):
    """A trial behind a figure has no raw observations."""


def compare(study: Study, raws: Mapping[str, RawTrial], check: Check) -> None:
    """Compares all figures of the summary, the twin and the counts of turns."""
    figures = _Figures(study, raws, check)
    summary = summarize(study)
    for point in summary["points"]:
        figures.compare_point(point)
    for comparison in summary["comparisons"]:
        figures.compare_pair(comparison)
    for run in summary["quality_runs"]:
        figures.compare_quality(run)
    figures.compare_twin()
    figures.compare_turns()
    lost.compare(study, raws, check)


class _Figures:
    def __init__(
        self, study: Study, raws: Mapping[str, RawTrial], check: Check
    ) -> None:
        self._study = study
        self._raws = raws
        self._check = check
        self._entries: dict[tuple[str, str, int], list[Entry]] = {}
        for entry in study.planned:
            spec = entry.spec
            if spec.revision:  # what a gate compares with: in no figure of the summary
                continue
            if spec.budget is None and spec.control is Control.NONE:
                for mode in entry.modes:
                    key = (spec.backend, mode.value, spec.num_replicas)
                    self._entries.setdefault(key, []).append(entry)

    def _raw(self, entry: Entry) -> RawTrial:
        if entry.trial_id not in self._raws:
            raise _MissingError(entry.trial_id)
        return self._raws[entry.trial_id]

    def _results(self, entries: Sequence[Entry]) -> dict[tuple[int, int], Any]:
        """Returns the raw results of the measured trials of a case, by repetition."""
        found = {}
        for entry in entries:
            if not entry.is_measured:
                continue
            result = dict(self._raw(entry).result)
            stated = entry.result.turns
            result["turns"] = [
                # Without a record of the load, the reason that is stated decides.
                {
                    **turn,
                    "is_void": bool(stated[index].void_reason)
                    if turn["is_void"] is None
                    else turn["is_void"],
                    "num_cores": turn.get("num_cores") or _num_cores(entry),
                }
                for index, turn in enumerate(result["turns"])
            ]
            found[entry.spec.repetition_index, entry.spec.seed] = result
        return found

    def _rates(self, entries: Sequence[Entry]) -> dict[tuple[int, int], Rates]:
        """Returns the rates of the trials that a case shows, by repetition."""
        results = self._results(_shown(entries))
        found = {key: recomputed.rates(result) for key, result in results.items()}
        if not any(found.values()):
            found = {
                key: recomputed.rates_beside_load(of) for key, of in results.items()
            }
        # One whose turns are all void differs from its status.
        return {key: rates for key, rates in found.items() if rates}

    def _ratio(
        self, first: Sequence[Entry], second: Sequence[Entry], *, is_relay: bool
    ) -> Figure | None:
        """Returns the ratio of two cases; beside load where no round is undisturbed."""
        results = [self._results(entries) for entries in (first, second)]
        valid = [
            {key: rates for key, of in side.items() if (rates := recomputed.rates(of))}
            for side in results
        ]
        found = recomputed.ratio(*valid, is_relay=is_relay)
        if not is_relay:
            return found
        if found is None:
            beside = [
                {key: recomputed.rates_beside_load(of) for key, of in side.items()}
                for side in results
            ]
            return recomputed.ratio(*beside, is_relay=True)
        return dataclasses.replace(found, load_left=recomputed.load_left(*results))

    def _values(self, entries: Sequence[Entry], name: str, how: Any) -> list[float]:
        return [
            how(rank[name] for rank in self._raw(entry).result["ranks"])
            for entry in _shown(entries)
        ]

    def compare_point(self, point: Mapping[str, Any]) -> None:
        """Compares all figures of one case in one mode."""
        backend, mode, size = point["backend"], point["mode"], point["num_replicas"]
        where = f"{backend} {mode} x{size}"
        entries = self._entries[backend, mode, size]
        baseline_n = self._study.plan.baseline_num_replicas
        baseline = self._entries.get((backend, mode, baseline_n), [])
        is_relay = entries[0].spec.order is Order.RELAY

        def throughput() -> Figure | None:
            found = self._rates(entries)
            if not found:
                return None
            return recomputed.throughput(list(found.values()), is_relay=is_relay)

        def relative(factor: float) -> Figure | None:
            if size == baseline_n:
                return None
            found = self._ratio(entries, baseline, is_relay=is_relay)
            return None if found is None else found.scaled(factor)

        def per_rank(name: str, how: Any) -> Figure | None:
            return _of_positive(self._values(entries, name, how))

        def utilisation() -> Figure | None:
            return _of_positive(
                [
                    recomputed.flop_utilisation(self._raw(entry).result, rates)
                    for entry in _shown(entries)
                    for rates in self._rates([entry]).values()
                ]
            )

        for kind, recompute in (
            ("throughput", throughput),
            ("speedup", lambda: relative(baseline_n)),
            ("efficiency", lambda: relative(baseline_n / size)),
            ("time to first step", lambda: per_rank("time_to_first_step_sec", max)),
            ("peak memory", lambda: per_rank("peak_memory_bytes", sum)),
            ("FLOP utilisation", utilisation),
        ):
            name = kind.lower().replace(" ", "_")
            self._compare(kind, where, point[name], recompute)

    def compare_pair(self, pair: Mapping[str, Any]) -> None:
        """Compares the ratio of two backends."""
        mode, size = pair["modes"][0], pair["num_replicas"]
        first = self._entries[pair["first"], mode, size]
        second = self._entries[pair["second"], mode, size]
        self._compare(
            "ratios of backends",
            f"{pair['first']} / {pair['second']} {mode} x{size}",
            pair["ratio"],
            lambda: self._ratio(
                first,
                second,
                is_relay=first[0].spec.order is Order.RELAY,
            ),
        )

    def compare_twin(self) -> None:
        """Compares the ratio of the twin and its case."""
        twin = relay.twin_of(self._study)
        if twin is None:
            return
        wanted = _identity(twin.case.entries[0])
        planned = [entry for entry in self._study.planned if not entry.spec.budget]
        same = [entry for entry in planned if _identity(entry) == wanted]
        groups = {
            control: [entry for entry in same if entry.spec.control is control]
            for control in (Control.TWIN, Control.NONE)
        }
        self._compare(
            "ratio of the twin",
            twin.case.label,
            {
                "value": twin.ratio.value,
                "low": twin.ratio.low,
                "high": twin.ratio.high,
                "n": twin.ratio.n,
                "method": twin.ratio.method,
            },
            lambda: self._ratio(
                groups[Control.TWIN], groups[Control.NONE], is_relay=True
            ),
        )

    def compare_turns(self) -> None:
        """Compares the numbers of turns and of void ones."""
        stated = relay.count_turns(self._study)
        if not stated.num_turns:
            return
        turns = []
        for entry in self._study.planned:
            if entry.trial is not None and entry.trial.result is not None:
                if entry.trial_id not in self._raws:
                    self._check.lack("turns of the study", "void turns: raw files")
                    return
                turns += self._raws[entry.trial_id].result["turns"]
        self._check.compare("turns of the study", "turns", stated.num_turns, len(turns))
        if any(turn["is_void"] is None for turn in turns):
            self._check.lack("turns of the study", "void turns: no turns.jsonl")
            return
        num_void = sum(turn["is_void"] for turn in turns)
        self._check.compare("turns of the study", "void", stated.num_void, num_void)

    def compare_quality(self, run: Mapping[str, Any]) -> None:
        """Compares the last point of a quality run."""
        (trial_id,) = run["trial_ids"]
        where = f"{run['backend']} x{run['num_replicas']} ({trial_id[:8]})"
        if trial_id not in self._raws:
            self._check.lack("quality runs", f"{where}: raw observations are missing")
            return
        last = self._raws[trial_id].result["curve"][-1]
        for name in ("num_steps", "num_examples", "train_time_sec"):
            self._check.compare(
                "quality runs",
                f"{where} {name}",
                run[name],
                last[name],
                tolerance=FIGURE_TOLERANCE,
            )
        for stated, raw in zip(run["reached"], last["quality"], strict=True):
            for name in ("name", "value", "low", "high", "num_examples"):
                self._check.compare(
                    "quality runs", f"{where} {name}", stated[name], raw[name]
                )

    def _compare(
        self,
        kind: str,
        where: str,
        stated: Mapping[str, Any] | None,
        recompute: Any,
    ) -> None:
        try:
            figure: Figure | None = recompute()
        except _MissingError as error:
            self._check.lack(
                kind, f"{kind} of {where}: trial {error} has no raw observations"
            )
            return
        if stated is None and figure is None:
            return
        if stated is None or figure is None or not _is_same(stated, figure):
            self._check.differ(kind, where, _text(stated), _text(figure))
        else:
            self._check.agree(kind)


def _shown(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the trials that are ok; where none is, those measured beside load."""
    ok = [entry for entry in entries if entry.is_ok]
    return ok or [entry for entry in entries if entry.is_measured]


def _num_cores(entry: Entry) -> int:
    assert entry.trial is not None
    if entry.trial.env is None:
        return entry.spec.num_replicas * entry.spec.cores_per_replica
    return len(set().union(*entry.trial.env.placement.cpusets))


def _identity(entry: Entry) -> dict[str, Any]:
    left_out = {"control", "repetition_index", "seed"}
    return entry.spec.model_dump(mode="json", exclude=left_out)


def _of_positive(values: Sequence[float]) -> Figure | None:
    """Zero stands for what could not be read."""
    return recomputed.of_values(values) if values and min(values) > 0 else None


def _is_same(stated: Mapping[str, Any], figure: Figure) -> bool:
    if "widened" in stated["method"]:
        figure = figure.widened()
    if stated["n"] != figure.n or not math.isclose(
        stated["value"], figure.value, rel_tol=FIGURE_TOLERANCE
    ):
        return False
    upper, lower = figure.load_left
    for name, end, factor in (
        ("low", figure.low, 1 / lower),
        ("high", figure.high, upper),
    ):
        said = stated[name]
        found = None if end is None else end * factor
        if said is None or found is None:
            if said is not found:
                return False
        elif figure.is_drawn:
            half = abs(math.log(found / figure.value))
            if abs(math.log(said / found)) > DRAWN_TOLERANCE * half:
                return False
        elif not math.isclose(said, found, rel_tol=FIGURE_TOLERANCE):
            return False
    return True


def _text(figure: Any) -> str:
    if figure is None:
        return "no figure"
    fields = figure if isinstance(figure, dict) else vars(figure)
    value, low, high = (fields[name] for name in ("value", "low", "high"))
    interval = "no interval" if low is None else f"[{low:.10g}, {high:.10g}]"
    return f"{value:.10g} {interval}, n = {fields['n']}"

"""How often real gates decide what: ``run_gates_in_slices.py STUDY [GENERATIONS]``.

STUDY is a gate of many generations, such as

    python -m harness gate --baseline REV --repeats 40 --minutes 30 --replicas 1

Its generations are independent: each has fresh processes. So consecutive ones, four at
a time, are gates that were measured one after another, and their verdicts can be
counted: of this tree against the baseline, and of the twin against its case, which are
equal programs. Prints each interval, and the counts with the exact interval of their
share.
"""

from __future__ import annotations

import collections
import pathlib
import sys
from typing import TYPE_CHECKING

from scipy import stats

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from results.figures import relay
from results.judging import gate_metrics
from results.records.models import Control
from results.statistics import judge
from results.store.study_store import Store
from results.study import case_pairs
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.study.cases import Study


def log_slowdowns(study: Study) -> dict[str, list[float]]:
    """Returns the log slowdown of each generation, of each pair of the study."""
    others = {case_pairs.key_of(case): case for case in study.other_revisions}
    found = {}
    for case in study.cases:
        other = others[case_pairs.key_of(case)]
        logs = gate_metrics.log_ratios(case, other, gate_metrics.THROUGHPUT)
        name = f"{case.spec.backend} x{case.spec.num_replicas} / baseline"
        found[name] = [-log for log in logs]
    twin = relay.twin_of(study)
    if twin is not None:
        (control,) = (c for c in study.controls if c.spec.control is Control.TWIN)
        logs = gate_metrics.log_ratios(control, twin.case, gate_metrics.THROUGHPUT)
        found["twin / its case (equal programs)"] = [-log for log in logs]
    return found


def gates(logs: Sequence[float], size: int) -> list[judge.Judgement]:
    """Judges disjoint slices of consecutive generations."""
    starts = range(0, len(logs) - size + 1, size)
    return [judge.judge(logs[start : start + size]) for start in starts]


def write(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{line}\n")


def main(path: str, size: int) -> None:
    """Prints the verdicts of all slices of a study."""
    study = load_study(Store(pathlib.Path(path)))
    for name, logs in log_slowdowns(study).items():
        found = gates(logs, size)
        whole = judge.judge(logs).slowdown
        write(
            f"{name}: {whole.value:.4f} [{whole.low:.4f}, {whole.high:.4f}] (90 %,"
            f" n = {len(logs)} generations)"
        )
        for gate in found:
            of = gate.slowdown
            write(
                f"  {of.value:.4f} [{of.low:.4f}, {of.high:.4f}] {gate.verdict.value}"
            )
        for verdict, count in collections.Counter(g.verdict for g in found).items():
            of = stats.binomtest(count, len(found)).proportion_ci(method="exact")
            write(
                f"  {verdict.value}: {count} of {len(found)}"
                f" [{of.low:.2f}, {of.high:.2f}]"
            )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4)

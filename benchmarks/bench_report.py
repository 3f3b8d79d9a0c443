"""Sizes and times of reports of 100 to 10,000 trials: stages, and the whole.

python -m benchmarks.bench_report [--repeats N]
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import tempfile
import time
from typing import Any

from benchmarks import runner

FOUR = ("single", "in_graph", "tf_mirrored", "multi_worker")
SIZES = (1, 2, 4, 8, 16, 32, 64)
MEGABYTE = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A study, and what its report may take.

    Attributes:
      shape: Arguments of ``synthetic.Shape``.
      most_megabytes: Of HTML.
      most_sec: From the start of a process to the written page; None for no target.
    """

    shape: dict[str, Any]
    most_megabytes: float
    most_sec: float | None = None


TARGETS = {
    "100 trials": Target(
        shape={"replicas": (1, 2, 4, 8), "repeats": 7}, most_megabytes=0.7
    ),
    "400 trials": Target(
        shape={
            "backends": FOUR,
            "replicas": SIZES,
            "baseline_batch_size": 64,
            "repeats": 5,
            "num_learning_runs": 5,
            "has_actors": True,
        },
        most_megabytes=1.5,
        most_sec=6.0,
    ),
    "1,176 trials": Target(
        shape={"replicas": (1, 2, 4, 8), "repeats": 84},
        most_megabytes=5.0,
        most_sec=15.0,
    ),
    "10,000 trials": Target(
        shape={
            "backends": FOUR,
            "replicas": SIZES,
            "baseline_batch_size": 64,
            "repeats": 240,
        },
        most_megabytes=5.0,
        most_sec=30.0,
    ),
}


def build(root: str) -> dict[str, float]:
    """Seconds that a fresh process needs to import what it needs and to build."""
    start = time.perf_counter()
    from reports import build as report
    from results.store import Store

    imported = time.perf_counter()
    text = report.build_report(Store.open(pathlib.Path(root)))
    end = time.perf_counter()
    return {
        "imports": imported - start,
        "build": end - imported,
        "size": len(text.encode()),
    }


def main() -> None:
    """Makes stores, builds their reports in fresh processes, prints the times."""
    # The study that nobody measured is one of the tests.
    sys.path.insert(0, str(runner.ROOT / "tests" / "support"))
    import synthetic

    arguments = runner.make_parser(__doc__, num_repeats=3).parse_args()
    for name, target in TARGETS.items():
        shape = synthetic.Shape(**target.shape)
        if "num_learning_runs" in target.shape:
            shape = dataclasses.replace(shape, budget=synthetic.LEARNING)
        with tempfile.TemporaryDirectory() as folder:
            store = synthetic.make_store(pathlib.Path(folder) / "study", shape)
            num_trials = len(store.trial_ids())

            def measure(root: str = str(store.root)) -> dict[str, float]:
                start = time.perf_counter()
                stages = runner.measure(build, arguments={"root": root})
                return {**stages, "whole": time.perf_counter() - start}

            found = runner.take_turns({name: measure}, arguments.num_repeats)[name]
        print(f"report of {name} ({num_trials})")
        size = [times["size"] / MEGABYTE for times in found[:1]]
        runner.print_value("size", size, "MB", at_most=target.most_megabytes)
        for stage in ("imports", "build"):
            runner.print_value(stage, [times[stage] for times in found], "s")
        whole = [times["whole"] for times in found]
        runner.print_value("whole", whole, "s", at_most=target.most_sec)


if __name__ == "__main__":
    main()

"""Times the report of 1,000 trials: stages, and the whole with the imports.

python -m benchmarks.bench_report [--repeats N]
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time

from benchmarks import runner

NUM_REPETITIONS = 84  # 14 cases, so 1,176 trials
BUDGET_SEC = 15.0


def build(root: str) -> dict[str, float]:
    """Seconds that a fresh process needs to import what it needs and to build."""
    start = time.perf_counter()
    from reports import build as report
    from results.store import Store

    imported = time.perf_counter()
    text = report.build_report(Store.open(pathlib.Path(root)))
    end = time.perf_counter()
    return {"imports": imported - start, "build": end - imported, "size": len(text)}


def main() -> None:
    """Makes a store, builds its report in fresh processes, prints the times."""
    # The study that nobody measured is one of the tests.
    sys.path.insert(0, str(runner.ROOT / "tests" / "support"))
    import synthetic

    arguments = runner.make_parser(__doc__, num_repeats=3).parse_args()
    shape = synthetic.Shape(replicas=(1, 2, 4, 8), repeats=NUM_REPETITIONS)
    with tempfile.TemporaryDirectory() as folder:
        store = synthetic.make_store(pathlib.Path(folder) / "study", shape)
        num_trials = len(store.trial_ids())

        def measure() -> dict[str, float]:
            start = time.perf_counter()
            stages = runner.measure(build, arguments={"root": str(store.root)})
            return {**stages, "whole": time.perf_counter() - start}

        found = runner.take_turns({"report": measure}, arguments.num_repeats)["report"]
    print(f"report of {num_trials} trials, {found[0]['size'] / 2**20:.1f} MiB of HTML")
    for stage in ("imports", "build"):
        runner.print_value(stage, [times[stage] for times in found], "s")
    whole = [times["whole"] for times in found]
    runner.print_value("whole", whole, "s", at_most=BUDGET_SEC)


if __name__ == "__main__":
    main()

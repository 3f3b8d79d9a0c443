"""Times the report of 1,000 trials: ``python -m benchmarks.bench_report``.

Prints one line per stage and the budget of the whole: 15 s, imports included.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
NUM_REPEATS = 84  # 12 cases, so 1,008 trials
BUDGET_SEC = 15.0
STAGES = """
import pathlib, sys, time
start = time.perf_counter()
from reports import build
from results.store import Store
imported = time.perf_counter()
text = build.build_report(Store.open(pathlib.Path(sys.argv[1])))
built = time.perf_counter()
print(imported - start, built - imported, len(text))
"""


def main() -> None:
    """Makes a store, builds its report in a fresh process, prints the times."""
    # The study that nobody measured is one of the tests.
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import synthetic

    shape = synthetic.Shape(replicas=(1, 2, 4, 8), repeats=NUM_REPEATS)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        store = synthetic.make_store(root / "study", shape)
        num_trials = len(store.trial_ids())
        start = time.perf_counter()
        told = subprocess.run(
            [sys.executable, "-c", STAGES, str(store.root)],
            capture_output=True,
            check=True,
            text=True,
            cwd=ROOT,
        )
        total = time.perf_counter() - start
    imports, build, size = told.stdout.split()
    print(f"report of {num_trials} trials")
    print(f"  imports     {float(imports):6.2f} s")
    print(f"  build       {float(build):6.2f} s   {int(size) / 2**20:.1f} MiB of HTML")
    print(f"  whole       {total:6.2f} s   (budget {BUDGET_SEC:.0f} s)")


if __name__ == "__main__":
    main()

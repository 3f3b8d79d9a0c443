"""Sizes and times of reports of 100 to 10,000 trials: stages, the whole, first paint.

python -m benchmarks.bench_report [--repeats N]
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any

from benchmarks import runner

FOUR = ("single", "in_graph", "tf_mirrored", "multi_worker")
SIZES = (1, 2, 4, 8, 16, 32, 64)
MEGABYTE = 1_000_000
SCREEN = 900  # pixels
PAINT = """async () => {
  for (let tries = 0; tries < 600; tries += 1) {
    const found = performance.getEntriesByName("first-contentful-paint")[0];
    if (found) return found.startTime;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error("no contentful paint within 30 s");
}"""
CLOSE = "document.querySelectorAll('details').forEach((one) => { one.open = false; })"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A study, and what its report may take."""

    shape: dict[str, Any]  # Arguments of ``synthetic.Shape``.
    most_megabytes: float  # Of HTML.
    # From the start of a process to the written page; None for no target.
    most_sec: float | None = None
    # Of 1280 x 900 pixels with closed details; None for no target.
    most_screens: float | None = None
    # From navigation to the first contentful paint; None for no target.
    most_paint_sec: float | None = None


TARGETS = {
    "100 trials": Target(
        shape={"replicas": (1, 2, 4, 8), "repeats": 7},
        most_megabytes=0.7,
        most_paint_sec=0.5,
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
        most_screens=14,
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


def build(root: str, page: str) -> dict[str, float]:
    """Seconds that a fresh process needs to import what it needs and to build."""
    start = time.perf_counter()
    from reports.page import build as report
    from results.store.study_store import Store

    imported = time.perf_counter()
    text = report.build_report(Store.open(pathlib.Path(root)))
    pathlib.Path(page).write_text(text, encoding="utf-8")
    end = time.perf_counter()
    return {
        "imports": imported - start,
        "build": end - imported,
        "size": len(text.encode()),
    }


def look(page: pathlib.Path) -> dict[str, float] | None:
    """Screens and seconds to the first paint in a real Chromium; None without one."""
    path = shutil.which("chromium")
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 1280, "height": SCREEN})
        window.goto(page.as_uri())
        paint = window.evaluate(PAINT)
        window.evaluate(CLOSE)
        height = window.evaluate("document.documentElement.scrollHeight")
        browser.close()
    return {"paint": paint / 1000, "screens": height / SCREEN}


def print_looks(page: pathlib.Path, target: Target, num_repeats: int) -> None:
    """Opens a page in fresh browsers and prints what a reader waits for."""
    looks = [found for _ in range(num_repeats) if (found := look(page)) is not None]
    if not looks:
        print("  screens and first paint: not measured, no chromium is installed here")
        return
    screens = [found["screens"] for found in looks[:1]]
    runner.print_value("screens", screens, "", at_most=target.most_screens)
    paint = [found["paint"] for found in looks]
    runner.print_value(
        "first contentful paint", paint, "s", at_most=target.most_paint_sec
    )


def main() -> None:
    """Makes stores, builds their reports in fresh processes, prints the times."""
    # The study that nobody measured is one of the tests.
    sys.path.insert(0, str(runner.ROOT / "tests" / "support" / "studies"))
    import synthetic

    arguments = runner.make_parser(__doc__, num_repeats=3).parse_args()
    for name, target in TARGETS.items():
        shape = synthetic.Shape(**target.shape)
        if "num_learning_runs" in target.shape:
            shape = dataclasses.replace(shape, budget=synthetic.LEARNING)
        with tempfile.TemporaryDirectory() as folder:
            store = synthetic.make_store(pathlib.Path(folder) / "study", shape)
            num_trials = len(store.trial_ids())

            page = pathlib.Path(folder) / "index.html"
            paths = {"root": str(store.root), "page": str(page)}

            def measure(paths: dict[str, str] = paths) -> dict[str, float]:
                start = time.perf_counter()
                stages = runner.measure(build, arguments=paths)
                return {**stages, "whole": time.perf_counter() - start}

            found = runner.take_turns({name: measure}, arguments.num_repeats)[name]
            print(f"report of {name} ({num_trials})")
            size = [times["size"] / MEGABYTE for times in found[:1]]
            runner.print_value("size", size, "MB", at_most=target.most_megabytes)
            for stage in ("imports", "build"):
                runner.print_value(stage, [times[stage] for times in found], "s")
            whole = [times["whole"] for times in found]
            runner.print_value("whole", whole, "s", at_most=target.most_sec)
            print_looks(page, target, arguments.num_repeats)


if __name__ == "__main__":
    main()

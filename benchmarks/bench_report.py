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
FOUR = {
    "backends": ("single", "in_graph", "tf_mirrored", "multi_worker"),
    "replicas": (1, 2, 4, 8, 16, 32, 64),
    "baseline_batch_size": 64,
}
# A study (arguments of ``synthetic.Shape``), and what its report may take: megabytes of
# HTML; seconds of a process that writes it; screens of 1280 x 900 pixels with closed
# details; and seconds from navigation to the first contentful paint.
TARGETS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "100 trials": (
        {"replicas": (1, 2, 4, 8), "repeats": 7},
        {"size": 0.7, "paint": 0.5},
    ),
    "400 trials": (
        {**FOUR, "repeats": 5, "num_learning_runs": 5, "has_actors": True},
        {"size": 1.5, "whole": 6.0, "screens": 14},
    ),
    "1,176 trials": (
        {"replicas": (1, 2, 4, 8), "repeats": 84},
        {"size": 5.0, "whole": 15.0},
    ),
    "10,000 trials": ({**FOUR, "repeats": 240}, {"size": 5.0, "whole": 30.0}),
}
TITLES = {
    "size": ("size", "MB"),
    "imports": ("imports", "s"),
    "build": ("build", "s"),
    "whole": ("whole", "s"),
    "screens": ("screens", ""),
    "paint": ("first contentful paint", "s"),
}


def build(root: str, page: str) -> dict[str, float]:
    """Seconds that a fresh process needs to import what it needs and to build."""
    start = time.perf_counter()
    from reports.page import build as report
    from results.store.study_store import Store

    imported = time.perf_counter()
    text = report.build_report(Store.open(pathlib.Path(root)))
    pathlib.Path(page).write_text(text, encoding="utf-8")
    return {
        "imports": imported - start,
        "build": time.perf_counter() - imported,
        "size": len(text.encode()) / MEGABYTE,
    }


def look(page: pathlib.Path) -> dict[str, float]:
    """Screens and seconds to the first paint in a real Chromium; nothing without."""
    path = shutil.which("chromium")
    if path is None:
        return {}
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


def main() -> None:
    # The study that nobody measured is one of the tests.
    sys.path.insert(0, str(runner.ROOT / "tests" / "support"))
    import synthetic

    given = runner.make_parser(__doc__, num_repeats=3).parse_args()
    for name, (fields, limits) in TARGETS.items():
        shape = synthetic.Shape(**fields)
        if "num_learning_runs" in fields:
            shape = dataclasses.replace(shape, budget=synthetic.LEARNING)
        with tempfile.TemporaryDirectory() as folder:
            store = synthetic.make_store(pathlib.Path(folder) / "study", shape)
            page = pathlib.Path(folder) / "index.html"
            print(f"report of {name} ({len(store.trial_ids())})")
            timings = []
            for _ in range(given.num_repeats):
                start = time.perf_counter()
                stages = runner.measure(build, root=str(store.root), page=str(page))
                whole = {"whole": time.perf_counter() - start}
                timings.append({**stages, **whole, **look(page)})
        for key, (title, unit) in TITLES.items():
            values = [one[key] for one in timings if key in one]
            if key in ("size", "screens"):  # the same in every repeat
                values = values[:1]
            if values:
                limit = limits.get(key)
                runner.print_figure(title, values, unit=unit, at_most=limit)
            elif key == "paint":
                text = "not measured, no chromium is installed here"
                print(f"  screens and first paint: {text}")


if __name__ == "__main__":
    main()

"""A real Chromium, and pages of studies of every shape for it."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib

import pytest

import reports

HERE = pathlib.Path(__file__).parent
LARGE_SIZES = (1, 2, 4, 8, 16, 32, 64)
REPEATS_OF_MANY = int(os.environ.get("GOLDEN_REPEATS", "12"))
"""With 12, single repetitions are too many to be drawn; 240 make 10,000 trials."""


@pytest.fixture(scope="session")
def shapes(synthetic):
    """Every shape of study, by name."""
    shape = synthetic.Shape
    every_failure = synthetic.every(synthetic.TrialStatus.FAILED)
    return {
        "default": shape(budget=synthetic.LEARNING),
        "three sizes": shape(replicas=(1, 2, 4)),
        "large": shape(
            backends=("single", "in_graph", "tf_mirrored", "multi_worker"),
            replicas=LARGE_SIZES,
            baseline_batch_size=64,
            repeats=3,
            budget=synthetic.LEARNING,
            num_learning_runs=3,
            has_actors=True,
        ),
        "many trials": shape(
            backends=("single", "in_graph", "tf_mirrored", "multi_worker"),
            replicas=LARGE_SIZES,
            baseline_batch_size=64,
            repeats=REPEATS_OF_MANY,
        ),
        "broken": dataclasses.replace(
            synthetic.BROKEN, budget=synthetic.LEARNING, num_learning_runs=3
        ),
        # A panel of each mode is drawn by the same code.
        "single N": shape(replicas=(1,), modes=(synthetic.STRONG,)),
        "single repetition": shape(repeats=1, modes=(synthetic.WEAK,)),
        "all failed": shape(statuses=every_failure),
        "controls": synthetic.interleaving_shape(
            lost={"in_graph": synthetic.Lost(contention=0.002)}
        ),
    }


@pytest.fixture(scope="session")
def stores(make, shapes):
    return lambda name: make(shapes[name])


@pytest.fixture(scope="session")
def report_of(tmp_path_factory, stores):
    """Builds the report of a shape, once."""

    @functools.cache
    def write(name):
        path = tmp_path_factory.mktemp("report") / "index.html"
        return reports.write_report(stores(name), path)

    return write


@pytest.fixture
def open_page(browser, report_of):
    """Opens the report of a shape; fails on anything the page says or loads."""
    contexts = []
    said = []

    def opened(name, width=1280, *, scheme="light", is_scripted=True):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=is_scripted,
            accept_downloads=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append("dialog"), dialog.dismiss()))
        path = name if isinstance(name, pathlib.Path) else report_of(name)
        page.on(
            "request",
            lambda request: (
                said.append(request.url)
                if not request.url.startswith((path.as_uri(), "data:", "blob:"))
                else None
            ),
        )
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [] == said


@pytest.fixture(scope="session")
def measure():
    """What measures the texts of the visible figures, in the page."""
    return (HERE / "measure.js").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def axe():
    """The accessibility checks."""
    return (HERE / "axe" / "axe.min.js").read_text(encoding="utf-8")

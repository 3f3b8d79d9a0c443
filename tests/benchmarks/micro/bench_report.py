"""The report of a study of 28 trials, in the formats that are text."""

import importlib

import pytest

from reports.exports import exports
from reports.page import build


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A study that nobody measured."""
    synthetic = importlib.import_module("synthetic")
    shape = synthetic.Shape(replicas=(1, 2, 4), repeats=3)
    return synthetic.make_store(tmp_path_factory.mktemp("s") / "s", shape)


def test_page(benchmark, store):
    """One HTML file with all figures."""
    html = benchmark.pedantic(build.build_report, [store], rounds=3, warmup_rounds=1)

    assert html.lower().startswith("<!doctype html>")


def test_markdown(benchmark, store):
    """What a pull request shows."""
    assert "speedup" in benchmark.pedantic(exports.as_markdown, [store], rounds=5)

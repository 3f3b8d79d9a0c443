"""The benchmark of workers adds its option to whatever the workload requests."""

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace

from replicator.contract.base import Replicator
from workloads.resnet50 import workload

ROOT = Path(__file__).resolve().parents[2]


def test_compression_joins_the_options_of_the_workload(monkeypatch):
    """Whatever options an optimizer is wrapped with, they all arrive."""
    monkeypatch.syspath_prepend(str(ROOT))
    bench = importlib.import_module("benchmarks.bench_multi_worker")
    parameters = inspect.signature(Replicator.wrap_optimizer).parameters.values()
    options = {
        one.name: one.default
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.name != "compression"
    }
    wrapped = []

    def build(repl, **_fields):
        repl.wrap_optimizer("sgd", **options)
        return SimpleNamespace(run=None)

    monkeypatch.setattr(workload, "WORKLOAD", SimpleNamespace(build=build))
    repl = SimpleNamespace(wrap_optimizer=lambda _, **given: wrapped.append(given))
    bench._program(repl, "bfloat16")

    assert "loss_scale" in options
    assert [{**options, "compression": "bfloat16"}] == wrapped

"""The figures of the README of peers that are on no published page: their records."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from results.figures import comparisons, relay, scaling
from results.store import zipped
from results.store.study_store import Store
from results.study.cases import Study, load_study

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "docs/archive/peers"
FIGURES = runpy.run_path(str(ROOT / "tests/docs/test_readme_figures.py"))


def opened(path: Path) -> Study:
    """Returns the study of a zip file."""
    with zipped.opened(path) as root:
        return load_study(Store.open(root))


@pytest.fixture(scope="module")
def text() -> str:
    """The README."""
    return (ROOT / "workloads/peers/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("peer", "title"), [("jax", "JAX"), ("torch_ddp", "PyTorch")])
def test_tunings_are_those_of_kept_records(text: str, peer: str, title: str) -> None:
    """Each way over the default, which was measured in the same relay."""
    section = text.partition("\n## Tuning")[2]
    stated, current = {}, ""
    for name, value, ratio, number in FIGURES["cells"](section, "| peer | value |"):
        current = name or current
        if current == title:
            stated[value.split("`")[1]] = ratio, number
    found = {}
    for pair in comparisons.of_study(opened(KEPT / f"tuning-{peer}.zip")):
        if pair.first.spec.backend == peer:
            way = pair.second.spec.backend.partition("[")[2].removesuffix("]")
            ratio = pair.ratio
            low, high = 1 / ratio.high, 1 / ratio.low
            found[way] = (
                f"{1 / ratio.value:.2f} [{low:.2f}, {high:.2f}]",
                str(ratio.n),
            )

    assert found == stated


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bfloat16", "\n## bfloat16"),
        ("horovod", "\n## Horovod"),
        ("sngan", "\n### SN-GAN"),
    ],
)
def test_tables_are_those_of_kept_records(text: str, name: str, head: str) -> None:
    """Rates, speedups and efficiencies, and the ratios below them."""
    study = opened(KEPT / f"{name}.zip")
    points = {
        (p.backend, p.mode.value, p.num_replicas): p for p in scaling.points(study)
    }
    section = text.partition(head)[2].partition("\n## ")[0]
    rows = FIGURES["cells"](section, "| backend | mode |")

    assert len(points) == len(rows)
    for backend, mode, replicas, rate, speedup, efficiency in rows:
        point = points[backend.strip("`"), mode, int(replicas)]
        assert " ".join(FIGURES["written"](point.throughput, 1)) == rate
        if point.num_replicas > 1:
            assert " ".join(FIGURES["written"](point.speedup, 2)) == speedup
            percent, interval = FIGURES["written"](point.efficiency, 0, 100.0)
            assert f"{percent} % {interval}" == efficiency
    for pair in comparisons.of_study(study):
        if pair.first.spec.num_replicas > 1:
            assert " ".join(FIGURES["written"](pair.ratio, 2)) in section
    assert " ".join(FIGURES["written"](relay.twin_of(study).ratio, 2)) in section

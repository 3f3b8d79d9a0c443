"""Serial fractions come with every speedup; fits only from enough replica counts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from results.figures import scaling, scaling_laws
from results.records.models import ScalingMode
from results.study.cases import load_study

if TYPE_CHECKING:
    import pathlib

WEAK = (ScalingMode.WEAK,)


def laws_of(root: pathlib.Path, synthetic: Any, **fields: Any) -> Any:
    """Returns the laws of a study."""
    shape = synthetic.Shape(backends=("some",), modes=WEAK, **fields)
    study = load_study(synthetic.make_store(root, shape))
    return scaling_laws.of_points(scaling.points(study), 1)


def test_every_speedup_has_a_serial_fraction(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """Throughput grows with the root of N: (1/sqrt(2) - 1/2) / (1 - 1/2) at two."""
    (found,) = laws_of(tmp_path, synthetic, noise=0.0001)
    fraction = found.fractions[2]

    assert [2] == list(found.fractions)
    # Single steps vary by 3 %, slow ones are in the mean.
    assert pytest.approx(2**0.5 - 1, abs=0.05) == fraction.value
    assert fraction.low < fraction.value < fraction.high
    assert found.points[2].num_replicas == 2


def test_few_replica_counts_are_refused_with_what_is_missing(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """One line; nothing is fitted."""
    (found,) = laws_of(tmp_path, synthetic)

    assert () == found.fits
    assert "need 6: measure 4 more" in found.refusal


def test_six_replica_counts_are_fitted(
    tmp_path: pathlib.Path, synthetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both laws, with the largest N as backtest."""
    trial = importlib.import_module("synthetic_trial")
    monkeypatch.setattr(trial, "NUM_CORES", 64)
    (found,) = laws_of(tmp_path, synthetic, replicas=(1, 2, 4, 8, 16, 32), repeats=2)

    assert ["amdahl", "usl"] == [fit.law for fit in found.fits]
    assert {32} == {fit.backtest.num_replicas for fit in found.fits}
    assert "" == found.refusal


def test_oversubscribed_cases_are_in_no_law(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """More replicas than cores are no evidence on scaling."""
    (found,) = laws_of(tmp_path, synthetic, replicas=(1, 2, 4))

    assert [2] == list(found.fractions)

"""Fixtures of several files: a study, and the stores of machines that shared it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from results.records.models import TrialStatus
from results.store.study_store import Store

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Parts = Callable[..., list[Store]]


@pytest.fixture
def whole(tmp_path: pathlib.Path, synthetic: Any) -> Store:
    """A study of twelve trials, one of which failed."""
    shape = synthetic.Shape(
        modes=(synthetic.WEAK,),
        statuses={("in_graph", synthetic.WEAK, 2, 1): TrialStatus.FAILED},
    )
    return synthetic.make_store(tmp_path / "whole", shape)


@pytest.fixture
def parts(tmp_path: pathlib.Path, whole: Store) -> Parts:
    """Deals the trials of a study to stores of several machines, in turn."""

    def deal(count: int = 3, *, store: Store = whole) -> list[Store]:
        stores = []
        for place in range(count):
            root = tmp_path / f"machine_{place}" / "study"
            part = Store.create(root)
            shutil.copy(store.root / "plan.json", root)
            for trial_id in store.trial_ids()[place::count]:
                shutil.copytree(store.trial_dir(trial_id), part.trial_dir(trial_id))
            stores.append(part)
        return stores

    return deal

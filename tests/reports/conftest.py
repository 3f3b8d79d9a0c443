"""Studies that several files of this folder read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from relay_study import ALL, Lost, RelayShape
from relay_study import make_store as make_relay

from reports.view.view import view_store

if TYPE_CHECKING:
    from reports.view.view import View
    from results.store.study_store import Store


@pytest.fixture(scope="session")
def sequence(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> View:
    """Two backends in both modes, three repetitions one after another."""
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("sequence")))


@pytest.fixture(scope="session")
def relay(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> View:
    """The same in turns, with a twin."""
    shape = synthetic.Shape(num_rounds=6, repeats=4, twin_factor=1.0)
    return view_store(synthetic.make_store(tmp_path_factory.mktemp("relay"), shape))


@pytest.fixture(scope="session")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    shape = RelayShape(lost={"in_graph": Lost(contention=0.002)}, controls=ALL)
    return make_relay(tmp_path_factory.mktemp("controlled"), shape)


@pytest.fixture(scope="session")
def failed(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> Store:
    shape = synthetic.Shape(
        backends=("in_graph",),
        modes=(synthetic.WEAK,),
        repeats=1,
        statuses={
            ("in_graph", synthetic.WEAK, size, 0): synthetic.TrialStatus.FAILED
            for size in (1, 2)
        },
    )
    return synthetic.make_store(tmp_path_factory.mktemp("failed"), shape)

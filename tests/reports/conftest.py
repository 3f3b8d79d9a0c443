"""Studies that several files of this folder read."""

import pytest

from reports.view import view_store


@pytest.fixture(scope="session")
def complete(make):
    """Two backends in both modes, three repetitions one after another."""
    return make()


@pytest.fixture(scope="session")
def sequence(complete):
    return view_store(complete)


@pytest.fixture(scope="session")
def interleaved(make):
    """The same in turns, with an A/A control."""
    return view_store(make(num_rounds=6, repeats=4, aa_factor=1.0))


@pytest.fixture(scope="session")
def broken(make, synthetic):
    """Every kind of failure, oversubscribed cases, and one repetition of a case."""
    return make(synthetic.BROKEN)


@pytest.fixture(scope="session")
def failed(make, synthetic):
    weak = {"backends": ("in_graph",), "modes": (synthetic.WEAK,)}
    failure = synthetic.TrialStatus.FAILED
    statuses = synthetic.every(failure, repetitions=(0,), **weak)
    return make(repeats=1, statuses=statuses, **weak)

"""Studies that several files of this folder read, and sites of them."""

import pytest

from reports import view_store, write_site
from results.judging import metric_of


def site_of(stores, folder, **options):
    """Writes a site; returns its pages by their paths."""
    index = write_site(stores, folder, metric_of("throughput"), **options)
    paths = sorted(index.parent.rglob("*.html"))
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


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


# Studies of sites: two that can be compared, and one of another machine.
@pytest.fixture(scope="module")
def page_of_a_study():
    """Sections of pages have tests of their own; here they cost no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.page.build.SECTIONS", ())
        yield


@pytest.fixture(scope="session")
def make_study(tmp_path_factory, synthetic):
    """Returns a function that makes a study, and changes its environment records."""

    def make(name, *, day=1, env=None, slower=None, **fields):
        defaults = {"noise": 0.004, "is_evaluated": False, "repeats": 4, "name": name}
        root = tmp_path_factory.mktemp("study") / "folder"
        shape = synthetic.Shape(**(defaults | fields))
        return synthetic.make_dated(root, shape, day=day, env=env, slower=slower)

    return make


STATE = {
    "glibc_version": "2.36",
    "git_commit": "0123456789" * 4,
    "is_source_modified": False,
}


@pytest.fixture(scope="session")
def first(make_study):
    """A study of a clean commit."""
    return make_study("before", env={"machine_state": STATE})


@pytest.fixture(scope="session")
def second(make_study):
    """The same of another commit with changes; tf_mirrored is 30 % slower."""
    state = STATE | {"git_commit": "fedcba9876" * 4, "is_source_modified": True}
    slower = {"tf_mirrored": 1.3}
    return make_study("after", day=2, env={"machine_state": state}, slower=slower)


@pytest.fixture(scope="session")
def elsewhere(make_study):
    env = {"machine_state": STATE, "cpu_model": "Other X9"}
    return make_study("elsewhere", day=3, fingerprints=("00" * 10,), env=env)

"""Studies that several files of this folder read, and sections of their pages."""

import json

import pytest
from study_files import edit_record

from reports import view_store
from reports.page.sections import SECTIONS

_SECTIONS = {section.SLUG: section.render for section in SECTIONS}


def section(slug, view):
    """Returns a section of the page by its id, as HTML."""
    return str(_SECTIONS[slug](view))


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
        store = synthetic.make_store(root, synthetic.Shape(**(defaults | fields)))
        date = f"2026-01-{day:02}"
        edit_record(root / "plan.json", created_at=f"{date}T00:00:00+00:00")
        for folder in root.glob("trials/*"):
            edit_record(folder / "status.json", started_at=f"{date}T12:00:00+00:00")
            edit_record(folder / "env.json", **(env or {}))
            spec = json.loads((folder / "spec.json").read_text())
            if spec["backend"] in (slower or {}):
                path = folder / "result.json"
                window_sec = json.loads(path.read_text())["window_sec"]
                edit_record(path, window_sec=window_sec * slower[spec["backend"]])
        return store

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

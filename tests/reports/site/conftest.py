"""Studies of sites: two that can be compared, and one of another machine."""

import json

import pytest
from study_files import edit_record

PAGE = '<!DOCTYPE html>\n<html>\n<body>\n<a class="skip" href="#x">Skip</a>\nx\n</body>'


@pytest.fixture(scope="module")
def page_of_a_study():
    """Pages of single studies have tests of their own; here they cost no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.page.build.build_report", lambda *_: PAGE)
        yield PAGE


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

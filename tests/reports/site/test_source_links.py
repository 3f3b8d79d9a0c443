"""Where readers of a page find the code that was measured."""

import dataclasses

import pytest
from click.testing import CliRunner

from harness.cli import main
from reports.site import build
from results.records.machines.machine_record import MachineState
from results.study.cases import load_study

PAGE = '<!DOCTYPE html>\n<html>\n<body>\n<a class="skip" href="#x">Skip</a>\nx\n</body>'
COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40
URL = "https://example.org/tree/{commit}?a=1&b=2"


def _with_commits(study, *commits):
    """Returns the study with the commits of its trials replaced, in turns."""
    entries = []
    for index, entry in enumerate(study.entries):
        env = entry.trial.env
        state = MachineState(git_commit=commits[index % len(commits)])
        env = env.model_copy(update={"machine_state": state})
        trial = dataclasses.replace(entry.trial, env=env)
        entries.append(dataclasses.replace(entry, trial=trial))
    return dataclasses.replace(study, entries=tuple(entries))


@pytest.fixture
def small(tmp_path, synthetic):
    shape = synthetic.Shape(name="a", modes=(synthetic.WEAK,), repeats=1)
    return load_study(synthetic.make_store(tmp_path / "a", shape))


def test_the_commit_is_in_the_address(small):
    """One link per commit; none where an address needs one and none is known."""
    address = "https://example.org/tree/"
    assert {} == build.source_links(small, "")
    assert {"Source code": address} == build.source_links(small, address)
    one = build.source_links(_with_commits(small, COMMIT), f"{address}{{commit}}")
    assert {"Source code": f"{address}{COMMIT}"} == one
    two = build.source_links(_with_commits(small, OTHER, COMMIT), URL)
    assert ["Source code (0123456789ab)", "Source code (ffffffffffff)"] == [*two]
    assert two["Source code (ffffffffffff)"] == URL.replace("{commit}", OTHER)


def test_pages_link_the_code(small, tmp_path, monkeypatch):
    """Of one study, and of each in a site; without the option there is no link."""
    del small
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: PAGE)
    page = tmp_path / "page.html"
    arguments = ["report", "a", "--runs-dir", str(tmp_path), "-o", str(page)]
    done = CliRunner().invoke(main.cli, arguments)
    assert 0 == done.exit_code, done.output
    assert page.read_text() == PAGE

    arguments.append("--source-url=https://example.org/code?a=1&b=2")
    done = CliRunner().invoke(main.cli, arguments)
    assert 0 == done.exit_code, done.output
    link = '<a href="https://example.org/code?a=1&amp;b=2">Source code</a>'
    assert link in page.read_text()

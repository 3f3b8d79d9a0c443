"""A sweep beside load ends with figures, and says what they are worth."""

import dataclasses
import json
import random
import re

import pytest
from command_lines import overridden, smoke_sweep
from fake_machine import two_cores

import reports
from harness import ExitCode
from results import WriteStoreError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_trials")]
QUIET, BUSY = 0.001, 0.3
SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1,2 --mode=weak --repeats=2 --budget=none "
    "--no-match --study=s"
)
INTERLEAVED = ("--order=interleaved", "--set=rounds=3")


@pytest.fixture
def beside(harness, overrides):
    def run(load, *options):
        def others(start, end):
            return dataclasses.replace(
                start.load_until(end),
                foreign_cpu_fraction=load(end.num_cores),
                foreign_resolution=0.0,
                one_core_resolution=0.0,
                stolen_cpu_fraction=0.0,
                num_throttled=0,
            )

        order = () if "--order=sequential" in options else INTERLEAVED
        words = overridden((*SWEEP, *order), *options)
        return harness(*words, overrides=overrides | {"load": others})

    return run


def efficiency(out):
    rows = json.loads(out)["figures"]
    (found,) = (
        row
        for row in rows
        if (row["quantity"], row["kind"]) == ("efficiency", "estimate")
        and (row["num_replicas"], row["mode"]) == (2, "weak")
    )
    return found


def test_a_sweep_beside_load_has_figures_and_says_so(beside, succeed):
    drawn = random.Random(8)

    def load(_num_cores):
        is_hit = drawn.random() < 0.7
        return BUSY if is_hit else QUIET

    code, out, err = beside(load, "--repeats=3", "--set=rounds=8", "--json")

    assert ExitCode.OK == code, err
    found = efficiency(out)
    assert found["low"] < found["value"] < found["high"]
    assert "beside load" not in found.get("caveats", "")
    (sentence,) = re.findall(
        r"busy machine: intervals are wider \(\d+ of \d+ blocks discarded\)", err
    )
    text = succeed("report", "s", "--format=text")
    assert sentence[1:] in " ".join(text.split())
    succeed("verify", "s")


@two_cores
def test_what_was_measured_beside_load_only_is_shown_and_is_no_evidence(
    beside, succeed, tmp_path
):
    def load(num_cores):
        return QUIET if num_cores == 1 else BUSY

    code, out, err = beside(load, "--mode=weak,strong", "--json")

    assert ExitCode.OK == code, err
    found = efficiency(out)
    assert found["value"] > 0
    assert "beside load: no evidence" in found["caveats"]
    assert "measured beside load only, which is no evidence; --retry failed" in err
    texts = [" ".join(succeed("report", "s", "--format=text").split())]
    succeed("report", "s")
    texts.append((tmp_path / "runs/s/report/index.html").read_text())
    for text in texts:
        assert "all blocks of in_graph x2 were disturbed" in text
        assert "no evidence" in text
    succeed("verify", "s")


def test_a_sweep_that_is_repeated_on_a_quiet_machine_is_evidence(beside):
    beside(lambda _: BUSY)
    code, out, err = beside(lambda _: QUIET, "--json", "--retry=failed")

    assert ExitCode.OK == code, err
    assert "beside load" not in efficiency(out).get("caveats", "")
    assert "beside load" not in err


@pytest.fixture
def quick_page(show_page):
    show_page("a page\n")


@pytest.mark.usefixtures("with_pages", "quick_page")
@pytest.mark.parametrize("order", ["relay", "sequential"])
def test_the_report_is_renewed_after_each_repetition(beside, monkeypatch, order):
    found = []
    write = reports.write_report

    def counted(store, path):
        found.append(sum(t.status is not None for t in store.trials()))
        if len(found) == 1:
            raise WriteStoreError("no space")
        write(store, path)

    monkeypatch.setattr(reports, "write_report", counted)
    code, _, err = beside(lambda _: QUIET, "--repeats=3", f"--order={order}")

    assert ExitCode.OK == code, err
    assert sorted(found) == found
    assert 3 == len(set(found)) == len(found)
    assert "the report is not renewed: no space" in err
    at_start, _, _ = err.partition("6 trials")
    assert "report: runs/s/report/index.html (renewed after each rep" in at_start

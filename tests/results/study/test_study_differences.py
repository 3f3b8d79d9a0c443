"""What two studies differ in is named, fact by fact."""

import re

import pytest

from reports import compare_studies
from results import load_study
from results.judging import metric_of

THROUGHPUT = metric_of("throughput")
STATE = {"git_commit": "0123456789" * 4, "is_source_modified": False}


@pytest.fixture
def make(tmp_path, synthetic):
    def make_study(name, env, **fields):
        shape = synthetic.Shape(
            modes=(synthetic.WEAK,),
            repeats=2,
            is_evaluated=False,
            num_measured_steps=3,
            name=name,
            **fields,
        )
        return load_study(synthetic.make_dated(tmp_path / name, shape, env=env))

    return make_study


def texts(first, second):
    return {
        f"{found.group}: {found.name}": f"{found.first} / {found.second}"
        for found in compare_studies(first, second, THROUGHPUT).differences
    }


ENV = {
    "machine_state": STATE,
    "packages": {"tensorflow": "2.21.0", "replicator-harness": "0.1.0"},
}
OTHER = {
    "machine_state": STATE
    | {"git_commit": "f" * 40, "is_source_modified": True, "container": "docker"},
    "packages": {"tensorflow": "2.22.0", "replicator-harness": "0.2.0"},
    "kernel": "Linux 7",
    "environment_variables": {"MALLOC_ARENA_MAX": "1"},
}


def test_each_difference_is_in_its_group(make):
    seeds = ({"environment_variables": {"PYTHONHASHSEED": of}} for of in "12")
    first, second = make("a", ENV), make("b", OTHER, workload_version="2")
    kernel = first.entries[0].trial.env.kernel

    assert {} == texts(*(make(f"equal {n}", env) for n, env in enumerate(seeds)))
    assert {
        "machine: kernel": f"{kernel} / Linux 7",
        "software: tensorflow": "2.21.0 / 2.22.0",
        "software: container": "not recorded / docker",
        "code: git commit": "012345678901 / ffffffffffff with changes",
        "code: replicator-harness": "0.1.0 / 0.2.0",
        "code: workload version": "1 / 2",
        "settings: MALLOC_ARENA_MAX": "not recorded / 1",
    } == texts(first, second)


@pytest.mark.parametrize(
    ("first", "second", "why_not"),
    [
        # Nobody can act on two hashes.
        ({}, {"cpu_model": "Other"}, r"the machines differ: processor \S.* / Other"),
        # Nothing is hidden where the facts do not explain it.
        ({}, {}, "machine fingerprint: 5f0c.*"),
        # A variable that moves performance is part of the fingerprint.
        (
            {},
            {"environment_variables": {"MALLOC_ARENA_MAX": "1"}},
            "the machines differ: MALLOC_ARENA_MAX not recorded / 1",
        ),
        # It is what is compared, and no reason to refuse.
        (
            {"packages": {"replicator-harness": "0.1.0"}},
            {"packages": {"replicator-harness": "0.2.0"}},
            "",
        ),
    ],
)
def test_a_fingerprint_is_explained_by_the_facts_behind_it(
    make, first, second, why_not
):
    studies = make("a", first), make("b", second, fingerprints=("00" * 10,))
    reasons = compare_studies(*studies, THROUGHPUT).reasons

    assert len(reasons) == bool(why_not)
    assert re.fullmatch(why_not, "".join(reasons))

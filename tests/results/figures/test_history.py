"""Studies of a case over time; and what blocks of an interleaved study show."""

import dataclasses
import re

import pytest
from command_lines import plain
from fake_machine import QUIET
from study_files import edit_record, with_blocks, with_environments
from synthetic import interleaving_shape, make_store

from reports import caveats_of, history, limits, view_store
from results import load_study

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CASE = {"backends": ("in_graph",), "repeats": 2, "is_evaluated": False}
CASE |= {"replicas": (1,)}


@pytest.fixture
def make_studies(tmp_path, synthetic):
    """Returns a function that makes studies of one case, a day apart."""

    def make(processors):
        shape = synthetic.Shape(modes=(synthetic.WEAK,), **CASE)
        studies = []
        for index, processor in enumerate(processors):
            commit = f"{index:x}{COMMIT[1:]}"
            state = {"git_commit": commit, "is_source_modified": index == 1}
            env = {"machine_state": state, "cpu_model": processor}
            root = tmp_path / f"study-{index:02}"
            store = synthetic.make_dated(root, shape, day=index + 1, env=env)
            studies.append(load_study(store))
        return studies[::-1]

    return make


def test_machines_are_never_compared(make_studies):
    found, _ = history(make_studies(["Slow CPU"] * 4 + ["Faster CPU"] * 2))
    slow, faster = dict.fromkeys(of.machine for of in found)

    assert [slow] * 4 + [faster] * 2 == [of.machine for of in found]
    assert ["Slow CPU", "Faster CPU"] == list(
        dict.fromkeys(of.machine_name.split(",")[0] for of in found)
    )
    assert sorted(of.date for of in found) == [of.date for of in found]


@pytest.mark.parametrize(
    ("fields", "is_same"),
    [
        ({"packages": {"tensorflow": "2.21.0", "replicator-harness": "9"}}, True),
        ({"packages": {"tensorflow": "2.22.0"}}, False),
        ({"load_average_before": 9.0, "fingerprint": "0"}, True),
        ({"kernel": "Linux 7"}, False),
        ({"gpus": ("A GPU",)}, False),
    ],
)
def test_what_a_machine_class_is(make_studies, fields, *, is_same):
    packages = {"packages": {"tensorflow": "2.21.0"}}
    studies = [
        with_environments(study, lambda _, changes=changes: packages | changes)
        for study, changes in zip(make_studies(["CPU"] * 2), ({}, fields), strict=True)
    ]
    (first, second), left_out = history(studies)

    assert [] == left_out
    assert is_same == (first.machine == second.machine)


def test_what_has_no_place_in_a_series_is_said(tmp_path, synthetic):
    failed = synthetic.TrialStatus.FAILED
    statuses = {("in_graph", synthetic.WEAK, 1, r): failed for r in (0, 1)}
    fields = CASE | {"backends": ("in_graph", "tf_mirrored")}
    shape = synthetic.Shape(modes=(synthetic.WEAK,), statuses=statuses, **fields)
    store = synthetic.make_store(tmp_path / "study", shape)
    (mirrored,) = (c for c in load_study(store).cases if c.spec.backend != "in_graph")
    path = store.trial_dir(mirrored.entries[0].trial_id) / "env.json"
    edit_record(path, kernel="Linux 7")
    found, left_out = history([load_study(store)])

    assert [] == found
    assert [
        "resnet50-laptop-synthetic, in_graph, 1 replica x 8: no trial is ok",
        (
            "resnet50-laptop-synthetic, tf_mirrored, 1 replica x 8: "
            "its trials ran on 2 machine classes"
        ),
    ] == left_out


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            [{"foreign_cpu_fraction": value} for value in (0.12, 0.9)],
            "other processes used more than 3 % of its cores",
        ),
        (
            [{"foreign_cpu_fraction": v, "num_cores": 16} for v in (0.02, 0.028)],
            "other processes used more than 13 % of one core of its 16, if all on one",
        ),
        ([{"num_throttled": value} for value in (1, 7)], "its cores were throttled"),
    ],
)
def test_the_limit_stands_in_place_of_what_was_measured(interleaved, fields, expected):
    exact = {"foreign_resolution": 0.0, "stolen_resolution": 0.0}
    loads = [dataclasses.replace(QUIET, **exact | changes) for changes in fields]
    reasons = [load.discard_reason() for load in loads]
    change = {"discard_reason": lambda block: reasons[block.round_index % 2]}
    view = dataclasses.replace(
        interleaved, study=with_blocks(interleaved.study, lambda _: change)
    )

    assert len(set(reasons)) == 2
    assert re.search(
        rf"(\d+) of \1 blocks discarded, \1 since {re.escape(expected)};", quiet(view)
    )


def quiet(view):
    """What the caveat about other load says."""
    (found,) = [of for of in caveats_of(view) if of.name == "Quiet machine"]
    return plain(found.reason)


@pytest.fixture(scope="module")
def interleaved(make):
    return view_store(make(interleaving_shape(controls=(), aa_factor=None)))


def test_a_block_that_stayed_discarded_is_counted(interleaved, make):
    shape = interleaving_shape(
        controls=(), aa_factor=None, is_without_common_round=True
    )
    blocks = [block for entry in interleaved.study.planned for block in entry.blocks]
    number = sum(not block.is_valid for block in blocks)
    said, lost = quiet(interleaved), quiet(view_store(make(shape)))

    assert 2 * 4 * 6 == len(blocks) - number
    assert f"{number} of {len(blocks)} blocks discarded, {number} since other" in said
    assert "no valid attempt" not in said
    assert re.search(
        r"24 of 48 blocks discarded, 24 since .*; 24 blocks had no valid attempt", lost
    )


@pytest.mark.parametrize(
    ("steps_per_block", "said"),
    [
        (
            (3,),
            [
                r"in_graph, 1 replica x 8: the first step of a block is 8.0 % \[8.0",
                r"\] longer than its others \(n = 4\), ",
                r"\+2.7 % of a block of 3 steps\.",
            ],
        ),
        # Nothing is claimed where nothing can be seen.
        ((1,), []),
        # A study of before: each process chose its own number of steps.
        (
            (1, 2),
            [
                r"of a block of 1 to 2 steps\.",
                r"2 of 2 cases have some one-step blocks: such a step is a first one, ",
                r"In 2 of 2 cases the number of steps per block differs.*\(1 to 2\)",
            ],
        ),
    ],
)
def test_what_a_first_step_takes_more_is_found(tmp_path, steps_per_block, said):
    shape = interleaving_shape(
        controls=(), first_step=1.08, steps_per_block=steps_per_block
    )
    view = view_store(make_store(tmp_path, shape))
    text = plain(" ".join(of for of in limits(view) if " block" in of))

    assert bool(said) == bool(text)
    for words in said:
        assert re.search(words, text), (words, text)

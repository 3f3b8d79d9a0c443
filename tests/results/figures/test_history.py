"""Studies of a case over time; and what blocks of an interleaved study show."""

import dataclasses
import re

import pytest
from command_lines import plain
from fake_machine import QUIET
from study_files import edit_record
from synthetic import interleaving_shape, make_store

from harness.machine.disturbance import discard_reason
from reports import view_store
from reports.site.build import history, machine_class
from reports.words import caveats
from results import load_study
from results.figures import conditions
from results.figures.conditions import _without_numbers, count_blocks

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CASE = {"backends": ("in_graph",), "repeats": 2, "is_evaluated": False}
CASE |= {"replicas": (1,)}


def change_records(root, name, **fields):
    for path in root.glob(f"trials/*/{name}.json"):
        edit_record(path, **fields)


@pytest.fixture
def make_studies(tmp_path, synthetic):
    """Returns a function that makes studies of one case, a day apart."""

    def make(processors):
        shape = synthetic.Shape(modes=(synthetic.WEAK,), **CASE)
        studies = []
        for index, processor in enumerate(processors):
            store = synthetic.make_store(tmp_path / f"study-{index:02}", shape)
            state = {
                "git_commit": f"{index:x}{COMMIT[1:]}",
                "is_source_modified": index == 1,
            }
            change_records(store.root, "env", machine_state=state, cpu_model=processor)
            started_at = f"2026-01-{index + 1:02}T12:00:00+00:00"
            change_records(store.root, "status", started_at=started_at)
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
    (study,) = make_studies(["CPU"])
    env = study.entries[0].trial.env
    env = env.model_copy(update={"packages": {"tensorflow": "2.21.0"}})

    assert is_same == (
        machine_class(env) == machine_class(env.model_copy(update=fields))
    )


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
def test_the_limit_stands_in_place_of_what_was_measured(fields, expected):
    for changes in fields:
        exact = {"foreign_resolution": 0.0, "stolen_resolution": 0.0}
        load = dataclasses.replace(QUIET, **exact | changes)
        assert expected == _without_numbers(discard_reason(load, 0))


def test_a_block_that_stayed_discarded_is_counted(tmp_path, synthetic):
    shape = interleaving_shape(controls=(), aa_factor=None)
    repeated = count_blocks(load_study(make_store(tmp_path / "repeated", shape)))
    shape = dataclasses.replace(shape, is_without_common_round=True)
    lost = count_blocks(load_study(make_store(tmp_path / "lost", shape)))

    num_discarded, num_blocks = repeated.num_discarded, repeated.num_blocks
    assert (num_blocks - num_discarded, 0) == (2 * 4 * 6, repeated.num_lost)
    said = caveats.blocks_text(repeated)
    number = num_discarded
    start = f"{number} of {num_blocks} blocks discarded, {number} since other proc"
    assert said.startswith(start)
    assert "no valid attempt" not in said
    assert (48, 24, 24) == (lost.num_blocks, lost.num_discarded, lost.num_lost)
    assert caveats.blocks_text(lost).endswith("; 24 blocks had no valid attempt")


@pytest.mark.parametrize(
    ("steps_per_block", "said"),
    [
        (
            (3,),
            [
                r"in_graph, 1 replica x 8: the first step of a block is 8.0 % \[8.0",
                r"\] longer than its others",
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
    text = plain(" ".join(caveats.first_steps(view)))

    assert bool(said) == bool(text)
    for words in said:
        assert re.search(words, text), (words, text)
    for found in map(conditions.first_step_of, view.measured_cases):
        assert (min(steps_per_block), max(steps_per_block)) == (
            found.fewest,
            found.most,
        )
        if steps_per_block == (3,):
            assert pytest.approx(1.08) == found.ratio.value
            assert 4 == found.ratio.n
            assert 0.08 / 3 == pytest.approx(found.part)

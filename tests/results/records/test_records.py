"""Records: their ids, the bounds of their values, and files that are no records."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import damaging
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_files import edit_record

import reports
import results
from results import (
    Budget,
    BudgetUnit,
    Order,
    ScalingMode,
    Store,
    TrialSpec,
    figures,
    judging,
    statistics,
)

SCHEMAS = Path(__file__).parents[3] / "docs" / "schema"
SPEC = TrialSpec(
    workload="resnet50",
    workload_version="1",
    code_digest="abc",
    preset="smoke",
    data="digits",
    backend="in_graph",
    num_replicas=2,
    per_replica_batch_size=4,
    global_batch_size=8,
    cores_per_replica=1,
    num_warmup_steps=2,
    num_measured_steps=4,
    is_evaluated=False,
    options={"version": "v1.5", "momentum": 0.9, "flag": True, "depth": 1},
    repetition_index=0,
    seed=7,
)


def test_public_names_are_those_of_the_stubs_and_every_error_is_one():
    """They are loaded on first use, so a wrong line of a stub is seen here only."""
    for package in (reports, results, figures, judging, statistics):
        assert [] == [n for n in package.__all__ if getattr(package, n, None) is None]
    defined = (Path(results.__file__).parent / "errors.py").read_text()

    assert set(re.findall(r"^class (\w+)", defined, re.MULTILINE)) <= {*results.__all__}


def test_ids_are_what_they_were():
    """A change here makes every stored trial run again: do not change it lightly."""
    ids = ("4b698d2a220e3b090cd3", "c65170829909a45a509c")
    options = dict(reversed(list(SPEC.options.items())))
    # JSON and back: true is not 1, and 1 is not 1.0.
    back = TrialSpec.model_validate(json.loads(SPEC.model_dump_json()))

    for spec in (SPEC, SPEC.model_copy(update={"options": options}), back):
        assert ids == (results.trial_id(spec), results.case_id(spec))
        assert ids[0] == results.planned_trial(spec, (ScalingMode.WEAK,)).trial_id
    assert [*map(type, SPEC.options.values())] == [*map(type, back.options.values())]


@pytest.mark.parametrize(
    ("update", "is_same_case"),
    [
        ({"repetition_index": 1}, True),
        ({"backend": "tf_mirrored"}, False),
        ({"options": {**SPEC.options, "depth": True}}, False),
    ],
)
def test_any_difference_is_another_trial(update, is_same_case):
    other = SPEC.model_copy(update=update)

    assert results.trial_id(SPEC) != results.trial_id(other)
    assert is_same_case == (results.case_id(SPEC) == results.case_id(other))


# What says how a record is stored, and fields of later versions at their defaults.
LATER = (
    *("schema_version", "budget", "order", "control", "allocator", "variables"),
    *("revision", "program", "plugins", "steps_per_sync"),
)
PRINTABLE = st.text(max_size=20).filter(str.isprintable)


@settings(max_examples=25)
@given(st.dictionaries(PRINTABLE, st.integers(-9, 9) | st.booleans() | PRINTABLE))
def test_an_id_is_a_digest_of_canonical_json(options):
    """Sorted and compact, in ASCII, whatever the options are."""
    spec = SPEC.model_copy(update={"options": options})
    content = json.loads(spec.model_dump_json())
    for name in LATER:
        del content[name]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))

    expected = hashlib.blake2b(text.encode("ascii"), digest_size=10).hexdigest()
    assert expected == results.trial_id(spec)


def test_what_json_has_not_has_no_id():
    endless = SPEC.model_copy(update={"options": {"x": float("nan")}})

    with pytest.raises(ValueError, match="not JSON compliant"):
        results.trial_id(endless)


def test_what_earlier_studies_say_of_polling_is_ignored():
    program = {"command": "a {replicas}", "metric": "client", "unit": "rows"}
    spec = json.loads(SPEC.model_dump_json()) | {"program": program}
    earlier = spec | {"program": {**program, "polls": False}}
    found, present = map(TrialSpec.model_validate, (earlier, spec))

    assert results.trial_id(found) == results.trial_id(present)
    assert results.case_id(found) == results.case_id(present)


def _parts(part, path=""):
    yield path, part
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _parts(value, f"{path}/{key}")
    if isinstance(part, list):
        for index, value in enumerate(part):
            yield from _parts(value, f"{path}/{index}")


BOUNDS = {
    "integer": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "number": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "string": ({"maxLength", "pattern", "enum", "const"},),
    "array": ({"maxItems"},),
}


@pytest.mark.parametrize("kind", ["plan", "spec", "env", "status", "result"])
def test_every_number_text_and_list_of_a_schema_has_bounds(kind):
    """A new field is bounded, or this says which is not."""
    missing = []
    text = (SCHEMAS / f"{kind}.schema.json").read_text(encoding="ascii")
    for path, part in _parts(json.loads(text)):
        if not isinstance(part, dict):
            continue
        if "const" not in part:
            needed = BOUNDS.get(part.get("type", ""), ())
            missing += [path for of in needed if not of & set(part)]
        if isinstance(part.get("additionalProperties"), dict):
            missing += [path] * ("maxProperties" not in part)

    assert [] == missing


@pytest.fixture
def store(tmp_path, make, synthetic):
    """Two cases of one backend, each with a quality run."""
    fields = {"backends": ("in_graph",), "modes": (synthetic.WEAK,), "repeats": 1}
    budget = Budget(amount=9, unit=BudgetUnit.STEPS, num_evaluations=1)
    whole = make(**fields, budget=budget)  # once
    return Store.open(shutil.copytree(whole.root, tmp_path / "study"))


def _first(store, name):
    return store.trial_dir(store.trial_ids()[0]) / name


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("directory", r"unreadable: it is not a regular file"),
        ("pipe", r"unreadable: it is not a regular file"),
        ("endless", r"unreadable: it is a symbolic link"),
        ("huge", r"unreadable: \d+ bytes, at most \d+ are read"),
    ],
)
def test_what_is_no_file_is_named_and_not_waited_for(store, what, reason):
    damaging.put(_first(store, "result.json"), what)
    (problem,) = store.read().problems

    assert re.search(reason, problem.reason)
    assert len(store.trial_ids()) - 1 == len(store.read().trials)


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("result", "{", "not JSON: "),
        ("status", "{}", "schema_version is None, must be an integer"),
        ("spec", '{"schema_version": 6}', "workload: Field required"),
        ("env", "\x00\xff", "not JSON"),
        # Nested without end, numbers without end, versions that never were.
        ("env", "[" * 100_000, r"not a record: lists or objects are nested too deeply"),
        ("env", "9" * 10_000, r"not JSON: Exceeds the limit"),
        ("env", f'{{"schema_version": {"9" * 4000}}}', r"schema_version is 9+\.\.\.9+"),
        ("env", '{"schema_version": 10000}', r"schema_version is 10000, must be an in"),
        ("env", '{"schema_version": 6, "\\ud800": 1}', r"(Field required|\\ud800)"),
        # Values out of bounds, and those that others contradict.
        ("result", {"window_sec": 1e-300}, r"window_sec: .*greater than or equal to"),
        ("result", {"window_sec": 10**400}, r"window_sec: Input should be a valid num"),
        ("result", {"num_parameters": 10**400}, r"num_parameters: .*or equal to 1000"),
        ("result", {"example_unit": "\ud800"}, r"example_unit: .* parse .*'\\ud800'"),
        ("result", {"example_unit": "a\nb"}, r"example_unit: .* must be one line"),
        ("result", {"example_unit": "a" * 201}, r"example_unit: .* at most 200 char"),
        ("result", {"collectives": "\0"}, r"collectives: .* holds '\\x00', must be"),
        ("result", {"trial_id": "../../x"}, r"trial_id: .*should match pattern"),
        ("result", {"trial_id": "0" * 20}, r"belongs to trial '0+', lies in '\w+'"),
        ("result", {"ranks": [{"step_time_sec": []}]}, r"ranks\.0\.\w+: "),
        ("result", {"num_measured_steps": 7}, r"num_measured_steps is 7, .* has 16"),
        ("result", {"global_batch_size": 9}, r"global_batch_size is 9, the spec of th"),
        ("plan", lambda of: of.pop("trials"), r"trials: Field required"),
        ("plan", {"trials": 7}, r"trials: Input should be a valid tuple"),
        ("plan", lambda of: of.update(trials=[7]), r"trials\.0: Input should"),
        ("plan", lambda of: of["trials"][0].pop("spec"), r"trials\.0\.spec: "),
        (
            "plan",
            lambda of: of["trials"][0].update(trial_id="0" * 20),
            r"trial 0 is named '0+' of case '\w+', its content has the ids '\w+' and",
        ),
        (
            "plan",
            lambda of: of["trials"].append(of["trials"][0]),
            r"names trial '\w+' twice; every trial must differ in its spec",
        ),
    ],
)
def test_what_is_no_record_is_named_and_costs_one_trial(store, name, damage, reason):
    broken, *others = store.trial_ids()
    path = store.root / "plan.json" if name == "plan" else _first(store, f"{name}.json")
    if isinstance(damage, str):
        path.write_text(damage)
    elif isinstance(damage, dict):
        edit_record(path, **damage)
    else:
        record = json.loads(path.read_text())
        damage(record)
        path.write_text(json.dumps(record))
    (problem,) = store.read().problems

    assert path == problem.path
    assert re.search(reason, problem.reason), problem.reason
    assert problem.reason.isprintable()
    if name != "plan":
        assert others == [trial.trial_id for trial in store.read().trials]
        with pytest.raises(
            results.CorruptRecordError, match=r"corrupt record '.*': .*; the other reco"
        ):
            store.read_trial(broken)


def test_records_that_contradict_each_other_are_named(store):
    first, second, *_ = store.trial_ids()
    edit_record(store.trial_dir(first) / "spec.json", num_measured_steps=9999)
    (store.trial_dir(second) / "result.json").unlink()
    reasons = {of.path.parent.name: of.reason for of in store.read().problems}

    assert f"the folder is named '{first}'" in reasons[first]
    assert "missing, though the status is 'ok'" == reasons[second]


def _without_last_step(result):
    result["ranks"][0]["step_time_sec"].pop()


def _with_two_valid_blocks(result):
    block = {"round_index": 0, "start_ns": 0, "end_ns": 10, "num_steps": 8}
    result["blocks"] = [block | {"attempt": 0}, block | {"attempt": 1}]


@pytest.mark.parametrize(
    ("order", "change", "reason"),
    [
        (Order.SEQUENTIAL, _without_last_step, r"measured steps of rank 0 is 15, the"),
        (
            Order.SEQUENTIAL,
            _with_two_valid_blocks,
            "has 2 blocks, the order is 'sequent",
        ),
        (Order.INTERLEAVED, _with_two_valid_blocks, "a round has two valid blocks"),
    ],
)
def test_a_result_that_contradicts_itself_or_its_spec_is_named(
    store, order, change, reason
):
    (trial, *_) = store.read().trials
    spec = trial.spec.model_copy(update={"order": order, "num_measured_steps": 16})
    trial_id = results.trial_id(spec)
    store.write_spec(trial_id, spec)
    result = json.loads(trial.result.model_dump_json()) | {"trial_id": trial_id}
    change(result)
    (store.trial_dir(trial_id) / "result.json").write_text(json.dumps(result))
    problems = [of for of in store.read().problems if trial_id in str(of.path)]

    assert re.search(reason, problems[0].reason), problems[0].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        # A report holds the file that a record names, so it must be the trial's own.
        (
            lambda curve: curve[0].update(samples="../../../../etc/passwd"),
            r"curve\.0\.samples: .*should match pattern",
        ),
        # It is said to be ok, so it reached something.
        (list.clear, r"the curve is empty, though the trial is a q"),
    ],
)
def test_a_curve_that_no_quality_run_has_is_named(store, change, reason):
    paths = [store.trial_dir(name) / "result.json" for name in store.trial_ids()]
    path = next(p for p in paths if json.loads(p.read_text())["curve"])
    curve = json.loads(path.read_text())["curve"]
    change(curve)
    edit_record(path, curve=curve)
    (problem,) = store.read().problems

    assert re.search(reason, problem.reason)


def test_a_study_that_cannot_be_looked_at_is_reported(store, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    trials = store.root / "trials"
    trials.rename(store.root / "elsewhere")
    trials.symlink_to("trials")
    for path, message in (
        (tmp_path / "loop", r"as a study directory: Too many.*; choose another"),
        (tmp_path / ("a" * 300), r"as a study directory: F.*; choose another"),
        (store.root, r"its trials is not a directory"),
    ):
        with pytest.raises(results.OpenStoreError, match=message):
            Store.open(path)


def test_a_lock_that_cannot_be_taken_is_reported(store):
    """Taking a lock empties its file, which must not be somebody else's."""
    other = store.root.parent / "precious"
    other.write_text("kept")
    (store.root / ".lock").symlink_to(other)
    with (
        pytest.raises(results.WriteStoreError, match=r"\.lock is a symbolic link"),
        results.lock_study(store.root),
    ):
        pass
    (store.root / ".lock").unlink()
    (store.root / ".lock-heartbeat").mkdir()
    with (
        pytest.raises(
            results.WriteStoreError, match=r"cannot write '.*heartbeat': .*; remove"
        ),
        results.lock_study(store.root),
    ):
        pass

    assert "kept" == other.read_text()


def test_a_folder_whose_name_is_no_text_can_be_reported(store):
    name = os.fsdecode(b"\xff\x1b")
    (store.root / "trials" / name).mkdir()
    (store.root / "trials" / name / "status.json").write_text("{}")
    (problem,) = store.read().problems

    assert r"\udcff\x1b/status.json" == problem.label

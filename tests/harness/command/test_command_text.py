"""What a command and its metric may be, and what is said of others; nothing is run."""

import json
import os
import sys
from pathlib import Path

import pytest

from harness.command import reader
from harness.command.reader import Reading, ReadingError
from harness.command.running import Run
from results import Program


def _file(path, kind, key="rate"):
    metric = f"throughput={kind}:out:{key}"
    program = Program(command="own", metric=metric, unit="images")
    return reader.MetricFile(program, path)


@pytest.fixture
def planned(succeed):
    def plan(*words):
        return json.loads(succeed("sweep", "--dry-run", "--json", *words))["trials"]

    return plan


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --n {replicas} train.py", "train.py"),
        ("mpirun -n {replicas} ./solver", "solver"),
        (f"env A={{replicas}} {sys.executable} train.py", "train.py"),
        ('sh -c "A={replicas} python train.py"', "train.py"),
        # Never like a workload of this project, whose published figures are others.
        ("resnet50 {replicas}", "resnet50-command"),
        ('sh -c "A=1 b | c" {replicas}', "sh"),
        (r"a b\;c --rate=3 {replicas}", "a"),
        ("env A=1 b --home '~' --cost 5$ {replicas}", "env"),
    ],
)
def test_a_program_is_called_by_its_script(planned, command, name):
    for file in ("train.py", "solver"):
        Path(file).touch()
    options = (f"--command={command}", "--metric=step_time=(x)", "--mode=strong")
    trials = planned(*options, "--replicas=1,2")

    assert {name} == {trial["spec"]["backend"] for trial in trials}


@pytest.mark.parametrize(
    ("mode", "batches"),
    [
        ("strong", {(1, 6), (2, 3), (3, 2)}),
        ("weak", {(1, 1), (2, 1), (3, 1)}),
    ],
)
def test_the_mode_of_a_program_without_batches_says_its_work(planned, mode, batches):
    options = ("--command=solve {replicas}", "--metric=step_time=(x)")
    trials = planned(*options, "--replicas=1..3", f"--mode={mode}")

    assert {(mode,)} == {tuple(trial["modes"]) for trial in trials}
    assert batches == {
        (trial["spec"]["num_replicas"], trial["spec"]["per_replica_batch_size"])
        for trial in trials
    }


@pytest.mark.parametrize(
    ("kind", "text", "key", "values"),
    [
        ("json", '{"train": {"rate": 3}}', "train.rate", [3.0]),
        ("json", '[{"rate": 3}, {"rate": 4}]', "rate", [3.0, 4.0]),
        ("json", '{"rate": 3}\n{"loss": 1}\n{"rate": 5}\n', "rate", [3.0, 5.0]),
        ("json", '{"train.rate": 3, "train": {"loss": 1}}', "train.rate", [3.0]),
        ("json", '\ufeff{"a.b": {"c.d": [1, 2]}}', "a.b.c.d", [1.0, 2.0]),
        ("csv", "step,rate\n0,3\n1,\n2,5\n", "rate", [3.0, 5.0]),
        ("csv", "\ufeffrate,step\n3,0\n5,1\n", "rate", [3.0, 5.0]),
        ("csv", "\ufeffstep;rate\r\n0;3\r\n1;5\r\n", "rate", [3.0, 5.0]),
    ],
)
def test_a_file_is_read_by_key(tmp_path, kind, text, key, values):
    path = tmp_path / "out"
    file = _file(path, kind, key)
    path.write_text(text)

    assert values == [reading.value for reading in file.read()]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json", None, r"the file 'out' of --metric was not written: No such file"),
        ("json", "{", r"is not JSON: .*; write one document, or one per line"),
        ("json", '{"a": 1}', r"has no number 'rate'; name one that it has"),
        ("csv", "rate,rate\n1,2\n", r"has 2 columns 'rate'; it has rate, rate"),
        ("csv", 'rate\n"1,234"\n', r"has '1,234', which may mean two things"),
        ("csv", "a,b\n1,2\n", r"has no column 'rate'; it has a, b"),
    ],
)
def test_a_file_without_the_number_is_an_error(tmp_path, kind, text, message):
    path = tmp_path / "out"
    file = _file(path, kind)
    if text is not None:
        path.write_text(text)

    with pytest.raises(ReadingError, match=message):
        file.read()


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("json", ['{"rate": 3}\n{"ra', 'te": 4}\n', "", '{"loss": 1}\n{"rate": 5}']),
        ("csv", ["step,rate\n0,3\n1,", "4\n", "", "2,\n3,5"]),
    ],
)
def test_a_file_that_grows_is_timed_line_by_line(tmp_path, kind, lines):
    path = tmp_path / "out"
    file = _file(path, kind)
    numbers = []
    for index, text in enumerate(lines):
        with path.open("a") as written:
            written.write(text)
        numbers.append(file.look(10 * (index + 1)))

    assert [1, 2, 2, 2] == numbers
    assert [Reading(10, 3), Reading(20, 4), Reading(40, 5)] == file.read()


def test_a_file_that_begins_anew_or_is_no_lines(tmp_path):
    path = tmp_path / "out"
    file = _file(path, "json")
    path.write_text('{"rate": 3}\n{"rate": 4}\n')
    assert 2 == file.look(10)
    path.write_text('{"rate": 5}\n')
    assert 1 == file.look(20)
    assert [Reading(20, 5)] == file.read()
    other = tmp_path / "other"
    other.write_text('{"rate": 6}\n{"rate": 7}\n{"rate": 8}\n')
    other.replace(path)
    assert 3 == file.look(30)
    path.write_text('[{"rate": 9},\n {"rate": 9.5}]')
    file.look(40)

    assert [Reading(0, 9), Reading(0, 9.5)] == file.read()


def test_numbers_of_a_run_before_are_not_read(tmp_path):
    path = tmp_path / "out.jsonl"

    def file():
        return _file(path, "json")

    first = file()
    path.write_text('{"rate": 3}\n')
    os.utime(path, ns=(1, 1))
    assert [Reading(0, 3.0)] == first.read()
    second = file()
    with pytest.raises(ReadingError, match="was there before the program started, wh"):
        second.read()
    path.write_text('{"rate": 3}\n{"rate": 4}\n')
    with pytest.raises(ReadingError, match=r"of a run before as well.*\{output_dir\}"):
        second.read()
    path.write_text('{"rate": 3}\n')
    assert [Reading(0, 3.0)] == second.read()


def test_a_head_that_a_run_before_left_is_no_number(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("step,rate\n")
    os.utime(path, ns=(1, 1))
    file = _file(path, "csv")
    path.write_text("step,rate\n0,3\n")

    assert [Reading(0, 3.0)] == file.read()


def test_a_program_that_takes_more_cores_or_other_gpus_is_told():
    run = Run()
    run.duration_sec, run.cpu_sec = 10.0, 21.0
    assert [] == run.remarks(2, ())
    (other,) = run.remarks(2, {3, 2})
    assert other.startswith("it used 2 GPUs that its trial does not have (2, 3); leav")
    run.cpu_sec = 39.0
    (remark,) = run.remarks(2, ())
    assert remark.startswith("it kept 3.9 cores busy and has 2 cores; leave the aff")

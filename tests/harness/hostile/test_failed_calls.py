"""The n-th call of a subcommand, or an allocation, fails: its answer, or one line and
none.

For each subcommand, each call and each errno. Never another output with code 0, an
internal error, half an output, or a study that is not what it was before. What sweeps
write has ``tests/harness/run/test_failed_calls_of_sweeps.py``.
"""

import errno
import os
import re
import shutil

import covering
import pytest
from damaging import ERRNOS, FailingReads, FailingWrites

from harness import ExitCode, command_line, main

pytestmark = pytest.mark.processes

SWEEP = "--workload=resnet50 --preset=smoke --replicas=1,2 --mode=weak --no-match"
ORDERS = {
    "a": "--order=interleaved --set=rounds=3",
    "b": "--order=interleaved --set=rounds=4",
    "c": "--order=sequential",
}
GATE = (
    f"gate {SWEEP} --backends=in_graph --repeats=2 --set=rounds=3 --baseline=a"
    " --study=g"
)
OUTPUT = "../written"
"""Outside of what is read: its content is part of the answer."""
SUBCOMMANDS = {
    "status": "status a",
    "list": "list studies",
    "report": "report a --format text",
    "report as a page": "report a",
    "site as text": "report a b --format text",
    "verify": "verify c",
    "verify an interleaved measurement": "verify a",
    "report as a zip": f"report c --format zip -o {OUTPUT}/c.zip",
    "resume an interleaved measurement": "sweep --study a",
    "sweep again": f"sweep {SWEEP} --repeats=2 --budget=none {ORDERS['c']} --study=c",
    "plan": f"sweep --dry-run {SWEEP} --repeats=2 --budget=none {ORDERS['a']}"
    " --study=a",
    "gate again": GATE,
}
OUTPUTS = {
    "page": "report a",
    "page elsewhere": f"report a -o {OUTPUT}/page.html",
    "site": f"report a b -o {OUTPUT} --allow-different",
    "CSV": f"report a --format csv -o {OUTPUT}.csv",
    "MLPerf": f"report a --format mlperf -o {OUTPUT}",
    "zip": SUBCOMMANDS["report as a zip"],
    "render": f"launch render --launcher ray --name=x --workers=2 -o {OUTPUT} -- true",
}
SEVERAL = ("site", "MLPerf", "render")
"""Outputs of several files, of which each is whole or as it was."""
WRITE_ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES)
SHIFT = int(covering.SEED or 0)
"""Each errno at each call needs as many series as there are of them."""
REFUSED = re.compile(r"^(error|left out): ", re.MULTILINE)
EVERY = 1 if covering.is_full() else 149
MOST_PLACES = None if covering.is_full() else 6


@pytest.fixture(scope="module")
def measured(tmp_path_factory, overrides, quick_sweeps):
    root = tmp_path_factory.mktemp("measured") / "place"
    root.mkdir()
    with quick_sweeps(root) as patch:
        for name, order in ORDERS.items():
            options = f"{SWEEP} --repeats=2 --budget=none {order} --study={name}"
            words = ("sweep", *options.split())
            patch.setattr("sys.argv", ["harness", *words])  # which the plan records
            assert ExitCode.OK == main(words, run_overrides=overrides)
        words = tuple(GATE.split())
        patch.setattr("sys.argv", ["harness", *words])
        code = main(words, run_overrides=overrides)
        assert code in {ExitCode.OK, ExitCode.INCONCLUSIVE}
    return root


TIMES = re.compile(rb"20\d\d-[\d:.T+-]+")


def files_in(root):
    """What is there, but for locks and the moment at which a file was made."""
    return {
        path.relative_to(root).as_posix(): TIMES.sub(b"", path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


def without_pages(root):
    return {k: v for k, v in files_in(root).items() if "/report/" not in k}


@pytest.fixture
def run_subcommand(overrides, capsys):
    def run(faults, words, place=-1):
        faults.place, faults.count, faults.failed = place, 0, ""
        code = main(words.split(), run_overrides=overrides)
        faults.place = -1
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    "subcommand",
    [
        pytest.param(
            subcommand, marks=[pytest.mark.full] * (subcommand == "report as a page")
        )
        for subcommand in SUBCOMMANDS
    ],
)
def test_a_failed_read_gives_no_other_answer(
    subcommand, measured, run_subcommand, monkeypatch
):
    monkeypatch.chdir(measured)
    faults = FailingReads(measured)
    faults.install(monkeypatch)
    written = measured / OUTPUT

    def run(place=-1):
        shutil.rmtree(written, ignore_errors=True)
        code, out, err = run_subcommand(faults, SUBCOMMANDS[subcommand], place)
        return code, f"{out}{files_in(written)}", err

    want = run()
    assert want[0] in {ExitCode.OK, ExitCode.INCONCLUSIVE}, want
    run()  # what is written once, such as a name, is there now
    num_calls, before = faults.count, files_in(measured)
    wrong = []
    for place in range(num_calls)[len(subcommand) % EVERY :: EVERY][:MOST_PLACES]:
        faults.number = ERRNOS[(place + SHIFT) % len(ERRNOS)]
        code, out, err = run(place)
        is_same = (code, out) == want[:2]
        is_named = REFUSED.search(err) is not None
        is_refused = code == ExitCode.USAGE and is_named and not written.exists()
        if not (is_same or is_refused) or before != files_in(measured):
            what = place, faults.failed, os.strerror(faults.number)
            wrong.append((*what, code, err[-300:], written.exists()))

    assert [] == wrong
    assert num_calls > 2, "it read nothing"


@pytest.mark.parametrize(
    "subcommand",
    [pytest.param(of, marks=[pytest.mark.full] * (of == "site")) for of in OUTPUTS],
)
def test_a_failed_write_leaves_the_old_output_or_a_whole_new_one(
    subcommand, measured, tmp_path, run_subcommand, monkeypatch, show_page
):
    show_page("<body>\n<p>12</p></body>")
    whole = tmp_path / "whole"
    faults = FailingWrites(whole)
    faults.install(monkeypatch)

    def begin():
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(whole, ignore_errors=True)
        shutil.copytree(measured, whole / "place")
        monkeypatch.chdir(whole / "place")
        return files_in(whole)

    before = begin()
    code, _, err = run_subcommand(faults, OUTPUTS[subcommand])
    assert ExitCode.OK == code, err
    num_calls, written = faults.count, files_in(whole)
    assert num_calls > 0
    assert written != before
    wrong = []
    for number in range(0, num_calls, 1 if covering.is_full() else num_calls // 3 + 1):
        before = begin()
        faults.number = WRITE_ERRNOS[(number + SHIFT) % len(WRITE_ERRNOS)]
        code, _, err = run_subcommand(faults, OUTPUTS[subcommand], number)
        what, after = faults.failed, files_in(whole)
        is_refused = code == ExitCode.USAGE and REFUSED.search(err) is not None
        is_refused &= "write the output" not in err  # which is another file
        is_whole = code == ExitCode.OK and after == written
        again, _, said = (
            (code, "", "") if is_whole else run_subcommand(faults, OUTPUTS[subcommand])
        )
        problems = {
            "an end of another kind": not is_refused and not is_whole,
            "half an output": after not in (before, written)
            and not (subcommand in SEVERAL and is_each_whole(before, after, written)),
            "the same command does not finish": again != ExitCode.OK,
            "another output then": files_in(whole) != written,
        }
        found = [text for text, is_wrong in problems.items() if is_wrong]
        if found:
            new = sorted(set(after) ^ set(before))
            wrong.append((number, what, code, found, new, err[-200:], said[-200:]))

    assert [] == wrong


def is_each_whole(before, after, written):
    """Whether each file is as it was, or as it is in the end, and none is lost."""
    return before.keys() <= after.keys() and all(
        content in (before.get(name), written.get(name))
        for name, content in after.items()
    )


def test_a_damaged_record_gives_no_other_verdict(
    measured, tmp_path, harness, overrides
):
    runs = tmp_path / "runs"
    shutil.copytree(measured / "runs", runs)
    path = min(runs.glob("a/trials/*/result.json"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    before = without_pages(runs)
    for subcommand, text in SUBCOMMANDS.items():
        reads_it = {"a", "studies"} & set(text.split()) and subcommand != "list"
        if not reads_it or OUTPUT in text:
            continue
        code, out, err = harness(*text.split(), overrides=overrides)
        assert code in {ExitCode.USAGE, ExitCode.SOME_TRIALS_FAILED}, subcommand
        said = out + err if "verify" in subcommand else err
        assert str(path.relative_to(runs / "a")) in said, subcommand
    code, _, err = harness("gate", *SWEEP.split()[:2], "--baseline=a", "--study=new")
    assert ExitCode.USAGE == code
    assert path.name in err
    assert before == without_pages(runs)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("FT_Render_Glyph failed with error 0x40: out of memory"),
    ],
)
@pytest.mark.parametrize("is_cause", [False, True])
def test_too_little_memory_is_told_whatever_error_a_library_makes_of_it(
    error, is_cause, monkeypatch, capsys
):
    def fail(**_):
        if is_cause:
            raise ImportError("a module of C") from error
        raise error

    monkeypatch.setattr(command_line, "main", lambda *_, **__: fail())

    assert ExitCode.USAGE == main(("status", "s"))
    assert re.fullmatch(
        r"error: there is not enough memory for this; end other programs, or .*; what"
        r" was finished is kept, so run the same command again\n",
        capsys.readouterr().err,
    )


def test_an_error_that_is_its_own_cause_is_read_once(monkeypatch, capsys):
    """As one of a lost disk is that is raised again, instead of what it caused."""
    lost = OSError(errno.EIO, "Input/output error", "lock")
    other = ValueError("unreadable")
    other.__cause__, lost.__context__ = lost, other

    def fail(*_, **__):
        raise lost

    monkeypatch.setattr(command_line, "main", fail)

    assert ExitCode.USAGE == main(("status", "s"))
    assert "error: cannot use 'lock': Input/output error" in capsys.readouterr().err

"""What is read of lines that a program prints: numbers, and causes of failures."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.command.reader import OutputReader
from harness.command.running import TerminalLine, first_cause
from results import Program

MOVES = ("back", "forward", "to", "blank")


def make_reader(pattern):
    metric = f"throughput={pattern}"
    return OutputReader(Program(command="own", metric=metric, unit="images"))


def timed(*chunks, pattern=r"rate: ([0-9.]+)"):
    """Returns when each number was read, and the numbers."""
    reader = make_reader(pattern)
    return [
        (one.ns, one.value)
        for ns, chunk in enumerate((*chunks, b""))
        for one in reader.feed(1, chunk, ns)
    ]


def read(*chunks, **options):
    return [value for _, value in timed(*chunks, **options)]


def test_a_number_has_the_time_at_which_its_line_ends():
    chunks = (b"s: 1\ns:", b" 2\r\x1b[1ms: 3\x1b[0m\n", b"s: 4")

    assert [(0, 1.0), (1, 2.0), (1, 3.0), (3, 4.0)] == timed(
        *chunks, pattern=r"^s: ([0-9.]+)$"
    )


def test_a_flood_without_line_ends_is_not_kept():
    lines = make_reader("^x([0-9])")
    for _ in range(5):
        assert [] == list(lines.feed(0, b"y" * 100_000, 1))

    assert [7.0] == [one.value for one in lines.feed(0, b"7x\nx7\n", 1)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("\x1b[1;32mrate:\x1b[0m \x1b[38;5;4m64\x1b[1m0\x1b[0m\n", [640]),
        ("rate: \x1b]8;;https://a/rate: 7\x07640\x1b]8;;\x07\n", [640]),
        ("\x1b]0;rate: 7\x1b\\rate: 640\n", [640]),
        ("rate: 650\b\b40\n", [640]),
        ("rate: 1\rrate: 22\rrate: 3\n", [1, 22, 3]),
        ("rate: 12345\rrate: 7\n", [12345, 7]),
        ("rate: 12345\r\x1b[6C700\n", [12345, 700]),
        ("rate: 12345\x1b[7G800\n", [80045]),
        ("rate: 12345\x1b[2K\x1b[1Grate: 7\r\n", [12345, 7]),
        ("a\x1b[A\x1b[2Krate: 5\n\nrate: 6\x1b[1Brate: 7\n", [5, 6, 7]),
        ("\x1b(Brate: 640\x0f\n", [640]),
        ("rate:\t5\n", []),
    ],
)
def test_what_is_shown_is_read(text, values):
    data = text.encode()

    assert values == read(data)
    assert values == read(*(data[i : i + 1] for i in range(len(data))))


def test_a_tab_stays_a_tab():
    assert [5.0] == read(b"rate\t5\n", pattern="rate\\t([0-9.]+)")


def shown(parts):
    """What stands on the line in the end, cell by cell, by the slowest means."""
    line, column = {}, 0
    for what, number in parts:
        if what == "back":
            column = max(1, column - number)  # the beginning would end the line
        elif what == "forward":
            column += number
        elif what == "to":
            column = number
        elif what == "erase":
            line = {at: one for at, one in line.items() if at < column}
        elif what == "blank":
            for at in range(column, column + number):
                if at in line:
                    line[at] = " "
        else:
            for one in what:
                line[column] = one
                column += 1
    last = max(line, default=-1)
    return "".join(line.get(at, " ") for at in range(last + 1))


def written(parts):
    text, column = "", 0
    for what, number in parts:
        if what == "back":
            far = max(0, min(number, column - 1))
            text += ("\b" * far, f"\x1b[{far}D")[far % 2]
            column -= far
        elif what == "forward":
            text, column = text + f"\x1b[{number}C", column + number
        elif what == "to":
            text, column = text + f"\x1b[{number + 1}G", number
        elif what == "erase":
            text += "\x1b[K"
        elif what == "blank":
            text += f"\x1b[{number}X"
        else:
            text += f"\x1b[3{len(what) % 8}m{what}\x1b[m"
            column += len(what)
    return text.encode()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(MOVES), st.integers(1, 9))
        | st.tuples(st.just("erase"), st.just(0))
        | st.tuples(st.text("0123456789abc", min_size=1, max_size=5), st.just(0)),
        max_size=12,
    ),
    st.integers(1, 7),
)
def test_a_line_is_that_of_a_terminal(parts, size):
    parts = [("=", 0), *parts]
    data = written(parts) + b"\n"
    line = TerminalLine()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    found = [text for chunk in (*chunks, b"") for text in line.feed(chunk)]

    assert [shown(parts).rstrip() or "="] == [text.rstrip() or "=" for text in found]


RULER = "=" * 60
ERROR = (
    'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n'
)
TORCHRUN = f"""
W1128 torch/distributed/elastic/multiprocessing/api.py:898] Sending process 7 SIGTERM
E1128 torch/distributed/elastic/multiprocessing/api.py:870] failed (exitcode: 1)
{ERROR}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
{RULER}
train.py FAILED
{"-" * 60}
Failures:
[1]:
  time      : 2026-11-28_10:00:01
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 7)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
{"-" * 60}
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_10:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 8)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
{RULER}
"""
OPEN_MPI = f"""{"-" * 50}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{"-" * 50}
{"-" * 50}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[1234,1],1]
  Exit code:    1
{"-" * 50}
"""
LIGHTNING = (
    "[rank: 1] Child process with PID 7 terminated with code 1. Forcefully terminating"
    " all other processes to avoid zombies\n"
)
MPICH = f"""{RULER}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 12 RUNNING AT here
=   EXIT CODE: 9
{RULER}
"""
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", ""),
        (f"no data\n{RULER}\n-----\n", "no data"),
        (f"{RULER}\n", ""),
        (f"{ERROR}ValueError: no data\nINFO: closed\nbye\n", "ValueError: no data"),
        (f"{ERROR}KeyError: 'a'\n{CHAIN}{ERROR}a.b.OwnError\n", "a.b.OwnError"),
        (f"{ERROR}ValueError: a\n{ERROR}EOFError: peer\n", "ValueError: a"),
        (f"{ERROR}ValueError: no data\n{TORCHRUN}", "ValueError: no data"),
        (f"out of data\n{TORCHRUN}", "out of data (rank 1 failed first)"),
        (
            "".join(f"[rank0]: {one}\n" for one in f"{ERROR}EOFError: peer".split("\n"))
            + "".join(f"[rank1]: {one}\n" for one in f"{ERROR}KeyError: 1".split("\n"))
            + TORCHRUN,
            "rank 1: KeyError: 1",
        ),
        (f"{ERROR}RuntimeError: no data\n{LIGHTNING}", "RuntimeError: no data"),
        (f"bad batch\n{LIGHTNING}", "bad batch (rank 1 failed first)"),
        (f"{ERROR}ValueError: no data\n{OPEN_MPI}", "ValueError: no data"),
        (f"mesh is empty\n{OPEN_MPI}", "mesh is empty (rank 1 failed first)"),
        (
            "[1,0]<stderr>:peer gone\n"
            + "".join(
                f"[1,1]<stderr>:{one}\n" for one in f"{ERROR}KeyError: 1".split("\n")
            ),
            "rank 1: KeyError: 1",
        ),
        (f"mesh is empty\n{MPICH}", "mesh is empty"),
        (
            "".join(f"1: {one}\n" for one in f"{ERROR}KeyError: 1".split("\n"))
            + "srun: error: here: task 1: Exited with exit code 1\n",
            "rank 1: KeyError: 1",
        ),
        (f"{ERROR}SystemExit: 3\nno data\n", "no data"),
    ],
)
def test_the_first_cause_is_named(text, cause):
    assert cause == first_cause(text)

"""A failure names its first cause, whatever its launcher prints after it."""

import pytest

from harness.command.first_cause import first_cause

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
    """Not a ruler, nor what a launcher says of it."""
    assert cause == first_cause(text)

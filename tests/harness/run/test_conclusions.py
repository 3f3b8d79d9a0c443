"""What a trial ended as, from what its ranks and its processes have left."""

import json
import threading
import time

import pytest

from harness.run import aggregate
from harness.run.trial_tree import TrialExit, is_out_of_memory
from harness.trial import rank_file
from harness.trial.rank_file import FirstExit
from results.records.models import Failure, Phase, TrialStatus

SECOND = 1_000_000_000


def write_rank(folder, rank, *, start, step, num_steps=6):
    """Writes a complete rank file; the first step is at ``start`` seconds."""
    lines = [
        {"kind": "facts", "num_parameters": 5, "example_unit": "images"}
        | {"global_batch_size": 8},
        {"kind": "first_step_done", "time_to_first_step_sec": 3.0},
    ]
    for index in range(num_steps):
        phase = ("first_step", "warmup", "measure")[min(index, 2)]
        begin = (start + index * step) * SECOND
        lines.append(
            {"kind": "step", "phase": phase, "index": index, "start_ns": begin}
            | {"end_ns": begin + step * SECOND, "loss": 1.0}
        )
    lines += [
        {"kind": "memory", "peak_memory_bytes": 7, "method": "faked"},
        {"kind": "phase", "phase": "report", "ns": 0},
        {"kind": "done", "ns": 0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank_{rank}.jsonl").write_text(text)


def conclude(folder, spec, exit_code=0, num_oom_kills=0, num_ranks=2, **fields):
    ended = TrialExit(
        exit_code=exit_code,
        is_timed_out=False,
        timeout_sec=60,
        duration_sec=9,
        num_oom_kills=num_oom_kills,
    )
    return aggregate.conclude(
        "0" * 20, spec, folder, ended, num_ranks=num_ranks, **fields
    )


def test_the_window_is_from_latest_start_to_latest_end(tmp_path, make_spec):
    """Throughput is not one rank's times the number of ranks."""
    write_rank(tmp_path, 0, start=0, step=1)
    write_rank(tmp_path, 1, start=1, step=2)
    result = conclude(tmp_path, make_spec()).result

    assert result is not None
    # Rank 0 measures from 2 to 6 s, rank 1 from 5 to 13 s.
    assert 13.0 - 5.0 == result.window_sec
    assert 8 * 4 / 8.0 == result.examples_per_sec
    assert [4, 4] == [len(rank.step_time_sec) for rank in result.ranks]


def test_a_rank_with_too_few_steps_is_no_result(tmp_path, make_spec):
    """The other rank's numbers are not enough."""
    write_rank(tmp_path, 0, start=0, step=1)
    write_rank(tmp_path, 1, start=0, step=1, num_steps=5)
    made = conclude(tmp_path, make_spec())

    assert made.status is TrialStatus.FAILED
    assert made.result is None
    assert made.failure is not None
    assert "rank 1 has steps [0, 1, 2, 3, 4], expected 0 to 5" in made.failure.reason


def test_a_rank_without_a_file_is_the_one_behind(tmp_path, make_spec):
    """A failure names the rank that got least far."""
    write_rank(tmp_path, 0, start=0, step=1)
    made = conclude(tmp_path, make_spec())

    assert made.failure is not None
    assert made.failure.phase is Phase.LAUNCH
    assert "rank 1 was in phase launch" in made.failure.reason


def test_a_rank_file_that_appears_late_is_waited_for(tmp_path, make_spec):
    """A network file system shows what another host wrote after a while."""
    write_rank(tmp_path, 0, start=0, step=1)
    late = threading.Timer(0.3, write_rank, (tmp_path, 1), {"start": 0, "step": 1})
    late.start()
    made = conclude(tmp_path, make_spec(), late_sec=20.0)
    late.join()

    assert made.status is TrialStatus.OK


def test_a_rank_file_that_never_appears_is_waited_for_only_so_long(tmp_path, make_spec):
    """And not at all where the trial has failed."""
    write_rank(tmp_path, 0, start=0, step=1)
    start = time.monotonic()
    made = conclude(tmp_path, make_spec(), late_sec=0.6)
    waited_sec = time.monotonic() - start
    conclude(tmp_path, make_spec(), exit_code=1, late_sec=60.0)

    assert made.status is TrialStatus.FAILED
    assert 0.6 <= waited_sec < 10
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("what\n", "rank_0.jsonl line 1"),
        (None, "rank_0.jsonl: it is not a regular file"),
        ('{"kind": "failure", "phase": "lunch"}\n', "rank 0 recorded a malformed fail"),
    ],
)
def test_a_broken_rank_file_is_a_failure_not_a_crash(tmp_path, make_spec, text, reason):
    """One bad trial does not end a sweep; a folder is no file."""
    path = tmp_path / "rank_0.jsonl"
    path.mkdir() if text is None else path.write_text(text)
    made = conclude(tmp_path, make_spec(), 1, num_ranks=1)

    assert made.failure is not None
    assert reason in made.failure.reason


@pytest.fixture
def conclude_killed(tmp_path, make_spec):
    phases = [{"kind": "phase", "phase": name, "ns": 1} for name in ("launch", "build")]
    for rank, lines in enumerate((phases[:1], phases)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"rank_{rank}.jsonl").write_text(text)

    def run(first, exit_code=-11):
        if first is not None:
            rank_file.write_first_exit(tmp_path, first)
        return conclude(tmp_path, make_spec(), exit_code)

    return run


def test_the_first_one_is_named(conclude_killed):
    """Although the other one was further behind."""
    failure = conclude_killed(FirstExit(rank=1)).failure

    assert Phase.BUILD is failure.phase
    assert "signal SIGSEGV: rank 1 was in phase build" in failure.reason


def test_without_a_record_it_is_the_one_that_is_furthest_behind(conclude_killed):
    assert "rank 0 was in phase launch" in conclude_killed(None).failure.reason


def test_a_known_reason_is_no_guess(conclude_killed):
    """A lost host is not taken for the kernel's out-of-memory killer."""
    found = conclude_killed(FirstExit(rank=1, reason="the connection was lost"), -9)

    assert TrialStatus.FAILED is found.status
    assert "the connection was lost: rank 1 was in phase build" == found.failure.reason


def test_where_nothing_was_started_no_rank_is_blamed(conclude_killed):
    """The engine, or a host, refused."""
    failure = conclude_killed(
        FirstExit(reason="host 'a' cannot read the trial"), 78
    ).failure

    assert (Phase.LAUNCH, "LaunchError") == (failure.phase, failure.exception_type)
    assert "host 'a' cannot read the trial" == failure.reason


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank": "x"', "\xff"])
def test_a_damaged_file_says_nothing(tmp_path, text):
    """It is written by a process that can be killed."""
    (tmp_path / "first_exit.json").write_text(text, encoding="latin-1")

    assert FirstExit() == rank_file.read_first_exit(tmp_path)


GRAPH = "Graph execution error:"
NCCL = (
    "NCCL: unhandled cuda error (run with NCCL_DEBUG=INFO for details). Last error:"
    " Cuda failure 2 'out of memory'"
)


@pytest.mark.parametrize(
    ("exception_type", "message"),
    [
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[9,9]"),
        ("InternalError", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        ("InternalError", "Failed to create cuDNN: CUDNN_STATUS_ALLOC_FAILED"),
        ("UnknownError", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("InternalError", "could not create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"),
        ("InternalError", "cusolver: CUSOLVER_STATUS_ALLOC_FAILED"),
        ("InternalError", NCCL),
        ("InternalError", "ncclUnhandledCudaError: CUDA failure: out of memory"),
        ("InternalError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
        ("InternalError", "failed to allocate 2.50GiB (2684354560 bytes) from device"),
        ("NotFoundError", "Failed to allocate scratch memory for the convolution"),
    ],
)
@pytest.mark.parametrize("is_in_graph", [False, True])
def test_a_failed_allocation_is_out_of_memory(exception_type, message, *, is_in_graph):
    """Also where the first line is only the one of a graph."""
    reason = GRAPH if is_in_graph else message
    failure = Failure(
        phase=Phase.FIRST_STEP,
        reason=reason,
        exception_type=exception_type,
        traceback=f"{GRAPH}\n\n{message}",
    )

    assert is_out_of_memory(failure)


@pytest.mark.parametrize(
    "message",
    [
        "CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "NCCL: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "failed to allocate a port",
    ],
)
def test_other_failures_of_the_same_libraries_are_not(message):
    """More memory would not help."""
    failure = Failure(
        phase=Phase.WARMUP,
        reason=message,
        exception_type="InternalError",
        traceback=message,
    )

    assert not is_out_of_memory(failure)


def test_a_process_that_a_library_ended_is_out_of_memory(make_spec, tmp_path):
    """Some abort where they cannot allocate; their last words are in the log."""
    text = "F0000 cuda_dnn.cc:1234] Check failed: CUDNN_STATUS_ALLOC_FAILED\n"
    (tmp_path / "stderr.log").write_text(text, encoding="utf-8")
    conclusion = conclude(tmp_path, make_spec(), -6, num_ranks=1)

    assert TrialStatus.OUT_OF_MEMORY is conclusion.status
    assert conclusion.failure is not None
    assert Phase.LAUNCH is conclusion.failure.phase
    assert "SIGABRT" in conclusion.failure.reason


SIGKILLS = [
    (2, TrialStatus.OUT_OF_MEMORY, "the kernel counted 2 out-of-memory kills"),
    (0, TrialStatus.FAILED, "cause unknown: the kernel counted no out-of-memory kills"),
    (
        None,
        TrialStatus.FAILED,
        "cause unknown: nobody counted out-of-memory kills of its control group",
    ),
]


@pytest.mark.parametrize(("count", "status", "said"), SIGKILLS)
def test_an_unexplained_sigkill_is_a_failure(make_spec, tmp_path, count, status, said):
    """Somebody sent it; that memory was short is said where the kernel counted it."""
    conclusion = conclude(tmp_path, make_spec(), -9, count, num_ranks=1)

    assert status is conclusion.status
    assert conclusion.failure is not None
    assert said in conclusion.failure.reason


def test_a_log_without_end_is_read_at_its_end(tmp_path, make_spec):
    """A program may write more than there is memory."""
    with (tmp_path / "stderr.log").open("wb") as log:
        log.seek(2**40)
        log.write(b"the last words\n")
    failure = conclude(tmp_path, make_spec(), 1, num_ranks=1).failure

    assert failure is not None
    assert "the last words" in str(failure.traceback)


@pytest.mark.parametrize("reason", ["bad \ud800 \0 end", "", 7, None])
def test_a_failure_that_is_no_text_is_a_failure_all_the_same(
    tmp_path, make_spec, reason
):
    """What a library says of its fault can be anything."""
    lines = [{"kind": "failure", "phase": "build", "reason": reason, "traceback": "\0"}]
    (tmp_path / "rank_0.jsonl").write_text(f"{json.dumps(lines[0])}\n")
    found = conclude(tmp_path, make_spec(), 1, num_ranks=1)

    assert found.failure is not None
    assert TrialStatus.FAILED is found.status
    assert found.failure.reason.isprintable()

"""Failed allocations of CUDA, cuDNN, cuBLAS and NCCL count as out of memory."""

import pytest

from harness.run import aggregate
from harness.run.out_of_memory import is_out_of_memory
from harness.run.trial_tree import TrialExit
from results.records.models import Failure, Phase, TrialStatus

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
    ended = TrialExit(
        exit_code=-6,
        is_timed_out=False,
        timeout_sec=60.0,
        duration_sec=1.0,
        num_oom_kills=0,
    )
    conclusion = aggregate.conclude("00" * 10, make_spec(), tmp_path, ended)

    assert TrialStatus.OUT_OF_MEMORY is conclusion.status
    assert conclusion.failure is not None
    assert Phase.LAUNCH is conclusion.failure.phase
    assert "SIGABRT" in conclusion.failure.reason


@pytest.mark.parametrize(
    ("count", "status", "said"),
    [
        (2, TrialStatus.OUT_OF_MEMORY, "the kernel counted 2 out-of-memory kills"),
        (
            0,
            TrialStatus.FAILED,
            "cause unknown: the kernel counted no out-of-memory kills",
        ),
        (
            None,
            TrialStatus.FAILED,
            "cause unknown: nobody counted out-of-memory kills of its control group",
        ),
    ],
)
def test_an_unexplained_sigkill_is_a_failure(make_spec, tmp_path, count, status, said):
    """Somebody sent it; that memory was short is said where the kernel counted it."""
    ended = TrialExit(
        exit_code=-9,
        is_timed_out=False,
        timeout_sec=60.0,
        duration_sec=1.0,
        num_oom_kills=count,
    )
    conclusion = aggregate.conclude("00" * 10, make_spec(), tmp_path, ended)

    assert status is conclusion.status
    assert conclusion.failure is not None
    assert said in conclusion.failure.reason

"""Recognizes failures that mean: the trial needs more memory than there is.

TensorFlow raises an error of its own where its allocator has no memory left. The
libraries that allocate by themselves (CUDA, cuBLAS, cuDNN, cuSOLVER, NCCL) report it in
many ways, and TensorFlow passes most of them on as internal or unknown errors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.records.models import Failure

OUT_OF_MEMORY_TYPES = ("MemoryError", "OutOfMemoryError", "ResourceExhaustedError")

_MESSAGES = re.compile(
    r"""
    CUDA_ERROR_OUT_OF_MEMORY
    | cudaErrorMemoryAllocation
    | (?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CUFFT)(?:_STATUS)?_ALLOC_FAILED
    | CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED
    | cuda\ (?:error|failure)\W+(?:2\W+)?out\ of\ memory
    | ncclUnhandledCudaError.*out\ of\ memory
    | RESOURCE_EXHAUSTED:
    | out\ of\ memory\ (?:while|when)\ trying\ to\ allocate
    | failed\ to\ allocate\ (?:the\ )?(?:scratch|workspace|device\ memory)
    | failed\ to\ allocate\ [\d.]+\s?[KMGT]?i?B(?:ytes)?\b.*from\ device
    """,
    re.IGNORECASE | re.VERBOSE,
)


def is_out_of_memory(failure: Failure) -> bool:
    """Whether a trial failed because it ran out of host or device memory."""
    if failure.exception_type in OUT_OF_MEMORY_TYPES:
        return True
    # The first line of an error of a graph is only "Graph execution error:".
    text = f"{failure.reason}\n{failure.traceback or ''}"
    return _MESSAGES.search(text) is not None

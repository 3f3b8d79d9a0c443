"""A program of the user's: what was started, and how its figures were read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from results.records.record_base import (
    MAX_LINE,
    MAX_METRICS,
    Amount,
    Line,
    Name,
    Record,
    Steps,
    Total,
    optional,
)
from results.records.texts import printable, shortened

Identity = Annotated[dict[Name, Line], Field(max_length=1_000)]
"""What the code digest of a program is made of, by name."""

CLIENT: Final = "client"
WALL: Final = "wall"
WITHOUT_PATTERN: Final = (CLIENT, WALL)
FEWEST_OF_WINDOW: Final = 3
"""Readings after warm-up that make a window; with fewer, the last one alone counts."""


MAX_ADVANCES: Final = 20
_EVERY = re.compile(r"\[[^\]=]*every ([1-9][0-9]{0,8})")


class Evidence(str, Enum):
    """How a trial of a program was read, the best first.

    ``window``: several numbers after warm-up, each timed as it was printed. ``rows``:
    several, without times: rows of a file, or output that came in bursts. ``last``: the
    number that was printed last; what it averages over, only the program knows.
    """

    WINDOW = "window"
    ROWS = "rows"
    LAST = "last"


class Program(Record):
    """What the trials of a program have in common."""

    command: Line = Field(description="with its placeholders, such as {replicas}")
    metric: Line = Field(
        description="NAME=PATTERN, as it was requested; or 'client': its processes"
        " connect, and the harness has the clock"
    )
    unit: Name = Field(description="plural unit of what it processes")
    counts: tuple[Line, ...] = optional(
        "NAME=PATTERN, as requested: what is the same in each run",
        (),
        max_length=MAX_METRICS,
    )
    folder: Line = optional("where it starts, relative to its repository", "")
    setup: Line = optional("what prepared each revision of a gate", "")

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, data: Any) -> Any:
        """Ignores a field of earlier studies."""
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if name != "polls"}
        return data

    @property
    def count_names(self) -> tuple[str, ...]:
        """The NAME of each ``NAME[WORDS]=PATTERN`` that it counts, in order."""
        return tuple(re.split(r"[=\[]", text)[0].strip() for text in self.counts)

    @property
    def steps_per_line(self) -> int | None:
        """Steps that each of its lines is said to be of; None if that is not said."""
        match = _EVERY.search(self.metric.partition("=")[0])
        return int(match[1]) if match else None

    @property
    def is_client(self) -> bool:
        """Whether its processes connect by the client, rather than print numbers."""
        return self.metric == CLIENT

    @property
    def is_wall(self) -> bool:
        """Whether the whole command is timed, and nothing that it prints."""
        return self.metric == WALL


class Readings(Record):
    """How the numbers of one trial of a program were read."""

    evidence: Evidence
    num_readings: Steps = Field(description="numbers that it printed, warm-up included")
    num_processes: Total = optional("the most at once, as sampled", 0)
    busy_cores: Amount | None = optional(
        "CPU time of its processes per second of its life"
    )
    advances: tuple[Total, ...] = optional(
        "how far whole numbers in its lines rose in the window: its steps"
        " or examples may be among them",
        (),
        max_length=MAX_ADVANCES,
    )
    remarks: tuple[Line, ...] = optional("what its user should know", (), max_length=20)


PIPELINE_STAGES: Final = "pipeline_stages"
"""Devices that each replica is split over, a stage of a pipeline on each."""


MESH: Final = "mesh"
"""``1xN``: N devices of each replica of ``dtensor``, which split dimensions."""


def devices_per_replica(options: Mapping[str, Any], *backends: str) -> int:
    """Returns over how many devices each replica of backends is split."""
    mesh = re.fullmatch("1x([1-9][0-9]{0,3})", str(options.get(MESH)), re.ASCII)
    if mesh and "dtensor" in backends:
        return int(mesh[1])
    count = options.get(PIPELINE_STAGES)
    # Records may be anybody's, and True is an int.
    return count if type(count) is int and count > 0 else 1


# A prefix would also record secrets (``TF_TOKEN_...`` and ``TF_VAR_...`` belong to
# Terraform) and the names of other machines (``TF_CONFIG``). A name that is missing
# here is not recorded; add it to the set where it belongs.

_MOVING = """
GLIBC_TUNABLES LD_PRELOAD MALLOC_ARENA_MAX MALLOC_ARENA_TEST MALLOC_CHECK_ MALLOC_CONF
MALLOC_MMAP_MAX_ MALLOC_MMAP_THRESHOLD_ MALLOC_PERTURB_ MALLOC_TOP_PAD_
MALLOC_TRIM_THRESHOLD_ MIMALLOC_ALLOW_LARGE_OS_PAGES MIMALLOC_ARENA_EAGER_COMMIT
MIMALLOC_PURGE_DELAY PYTHONMALLOC TCMALLOC_AGGRESSIVE_DECOMMIT
TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES
TCMALLOC_RELEASE_RATE
BLIS_NUM_THREADS GOMP_SPINCOUNT GOMP_STACKSIZE KMP_BLOCKTIME KMP_HW_SUBSET KMP_LIBRARY
KMP_TPAUSE MKL_CBWR MKL_DEBUG_CPU_TYPE MKL_DOMAIN_NUM_THREADS MKL_DYNAMIC
MKL_ENABLE_INSTRUCTIONS MKL_THREADING_LAYER NPY_DISABLE_CPU_FEATURES
NPY_ENABLE_CPU_FEATURES NUMEXPR_MAX_THREADS OMP_CANCELLATION OMP_DYNAMIC
OMP_MAX_ACTIVE_LEVELS OMP_NESTED OMP_SCHEDULE OMP_STACKSIZE OMP_THREAD_LIMIT
OMP_WAIT_POLICY OPENBLAS_CORETYPE OPENBLAS_MAIN_FREE OPENBLAS_THREAD_TIMEOUT PYTHON_GIL
PYTHONDEVMODE PYTHONOPTIMIZE PYTHONTRACEMALLOC
CUBLAS_WORKSPACE_CONFIG CUDA_AUTO_BOOST CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE
CUDA_DEVICE_MAX_COPY_CONNECTIONS CUDA_DEVICE_MAX_CONNECTIONS CUDA_FORCE_PTX_JIT
CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDNN_CONV_WSCAP_DBG CUDNN_LOGERR_DBG
CUDNN_LOGINFO_DBG CUDNN_LOGLEVEL_DBG CUDNN_LOGWARN_DBG DNNL_CPU_ISA_HINTS
DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA DNNL_PRIMITIVE_CACHE_CAPACITY DNNL_VERBOSE
KERAS_BACKEND MUJOCO_GL NVIDIA_TF32_OVERRIDE ONEDNN_CPU_ISA_HINTS
ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA ONEDNN_PRIMITIVE_CACHE_CAPACITY
ONEDNN_VERBOSE PYOPENGL_PLATFORM
NCCL_ALGO NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE NCCL_CHECKS_DISABLE NCCL_COLLNET_ENABLE
NCCL_CROSS_NIC NCCL_CTA_POLICY NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE
NCCL_DMABUF_ENABLE NCCL_GRAPH_FILE NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER
NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_AR_THRESHOLD NCCL_IB_CUDA_SUPPORT NCCL_IB_DISABLE
NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_MERGE_NICS NCCL_IB_PCI_RELAXED_ORDERING
NCCL_IB_QPS_PER_CONNECTION NCCL_IB_SL NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC
NCCL_IGNORE_CPU_AFFINITY NCCL_LAUNCH_MODE NCCL_LL128_BUFFSIZE NCCL_LL_BUFFSIZE
NCCL_LOCAL_REGISTER NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MAX_NRINGS
NCCL_MAX_P2P_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_MIN_NRINGS
NCCL_MIN_P2P_NCHANNELS NCCL_MNNVL_ENABLE NCCL_NCHANNELS_PER_NET_PEER NCCL_NET
NCCL_NET_FORCE_FLUSH NCCL_NET_GDR_C2C NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ
NCCL_NET_PLUGIN NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_NSOCKS_PERTHREAD
NCCL_NTHREADS NCCL_NVB_DISABLE NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVLS_CHUNKSIZE
NCCL_NVLS_ENABLE NCCL_NVLS_NCHANNELS NCCL_P2P_DIRECT_DISABLE NCCL_P2P_DISABLE
NCCL_P2P_LEVEL NCCL_P2P_LL_THRESHOLD NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE
NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PXN_LEVEL NCCL_P2P_USE_CUDA_MEMCPY NCCL_PROTO
NCCL_PXN_DISABLE NCCL_RUNTIME_CONNECT NCCL_SHM_DISABLE NCCL_SHM_LOCALITY
NCCL_SHM_USE_CUDA_MEMCPY NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SOCKET_FAMILY
NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_THREAD_THRESHOLDS NCCL_TOPO_FILE
NCCL_TUNER_PLUGIN NCCL_WORK_FIFO_BYTES NCCL_WORK_FIFO_DEPTH
TF_AUTOTUNE_MIN_WARMUP_ITERATIONS TF_AUTOTUNE_THRESHOLD
TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE
TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL TF_CONV2D_USE_FP16_ACCUMULATE
TF_CPU_ALLOCATOR_USE_BFC TF_CPU_BFC_MEM_LIMIT_IN_MB TF_CUBLAS_WORKSPACE_LIMIT_IN_MB
TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC TF_CUDA_PLATFORM_GPU_DEVICE_SCHEDULE
TF_CUDNN_DETERMINISTIC TF_CUDNN_DISABLE_CONV_1X1_OPTIMIZATION TF_CUDNN_RNN_USE_AUTOTUNE
TF_CUDNN_USE_AUTOTUNE TF_CUDNN_USE_RUNTIME_FUSION TF_CUDNN_WORKSPACE_LIMIT_IN_MB
TF_CUFFT_WORKSPACE_LIMIT_IN_MB TF_DATA_EXPERIMENT_OPT_IN TF_DATA_EXPERIMENT_OPT_OUT
TF_DETERMINISTIC_ALLOCATOR TF_DETERMINISTIC_OPS TF_DETERMINISTIC_ORDER
TF_DISABLE_JIT_KERNELS TF_DISABLE_RZ_CHECK TF_EAGER_ENABLE_SMALL_TENSOR_CPU_PINNING
TF_EAGER_REMOTE_USE_SEND_TENSOR_RPC TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE
TF_ENABLE_FFT_TILING_FORWARD TF_ENABLE_GPU_GARBAGE_COLLECTION TF_ENABLE_ONEDNN_OPTS
TF_ENABLE_ONEDNN_SPMM TF_ENABLE_WINOGRAD_NONFUSED TF_ENABLE_ZENDNN_OPTS
TF_FORCE_GPU_ALLOW_GROWTH TF_FORCE_UNIFIED_MEMORY TF_FP16_CONV_USE_FP32_COMPUTE
TF_FP16_MATMUL_USE_FP32_COMPUTE TF_FP16_RNN_USE_FP32_COMPUTE TF_GPU_ALLOCATOR
TF_GPU_HOST_MEM_LIMIT_IN_MB TF_GPU_THREAD_COUNT TF_GPU_THREAD_MODE
TF_GRPC_DEFAULT_OPTIONS TF_GRPC_WORKER_CACHE_QUEUES TF_GRPC_WORKER_CACHE_THREADS
TF_MATMUL_AUTOTUNE_ENABLE TF_MKL_ALLOC_MAX_BYTES TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE
TF_ONEDNN_ASSUME_FROZEN_WEIGHTS TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD
TF_ONEDNN_USE_SYSTEM_ALLOCATOR TF_OVERRIDE_GLOBAL_THREADPOOL
TF_PER_DEVICE_MEMORY_LIMIT_MB TF_PFLR_PARALLEL_INSTANTIATE_THRESHOLD
TF_SET_ONEDNN_FPMATH_MODE TF_SYNC_ON_FINISH TF_USE_CUBLASLT
TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT TF_USE_DEEP_CONV2D TF_USE_DEFAULT_CONV_ALGO
TF_USE_EIGEN_PARALLEL_FOR_IN_WORK_SHARDER TF_USE_LEGACY_KERAS TF_XLA_FLAGS XLA_FLAGS
"""
_EXPLAINING = """
CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES GOMP_CPU_AFFINITY KMP_AFFINITY KMP_SETTINGS
MKL_NUM_THREADS MKL_VERBOSE NCCL_DEBUG NCCL_DEBUG_SUBSYS NUMEXPR_NUM_THREADS
OMP_DISPLAY_ENV OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OPENBLAS_NUM_THREADS
OPENBLAS_VERBOSE PYTHONHASHSEED TF_CPP_MAX_VLOG_LEVEL TF_CPP_MIN_LOG_LEVEL
TF_CPP_VMODULE TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS
"""

IDENTITY = frozenset(_MOVING.split())
"""Move performance, and reach the processes of a trial as the user set them: memory,
threads, libraries, collectives and TensorFlow. They belong to the identity of a trial.
"""
RECORDED = IDENTITY | frozenset(_EXPLAINING.split())
"""The others are set or removed by the harness for each trial, as its spec and
placement say, or without an effect on time: they explain a trial, and do not tell one
from another."""


def recorded_variables(
    environ: Mapping[str, Any], names: frozenset[str] = RECORDED
) -> dict[str, Any]:
    """Returns the variables that are recorded with a trial, by name."""
    recorded = {name: environ[name] for name in sorted(names & environ.keys())}
    preloaded = recorded.get("LD_PRELOAD")
    if isinstance(preloaded, str):
        # Which library matters, not the folder. Both separators are allowed.
        paths = preloaded.replace(":", " ").split()
        recorded["LD_PRELOAD"] = ":".join(path.rpartition("/")[2] for path in paths)
    # A value can have arbitrary bytes; a record stores one printable line. What is no
    # text is of a record that is checked later.
    return {
        name: printable(shortened(value))[:MAX_LINE]
        if isinstance(value, str)
        else value
        for name, value in recorded.items()
    }

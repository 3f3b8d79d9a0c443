"""Names and facts of the peers; imports neither their frameworks nor TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from replicator.catalog import BackendInfo

if TYPE_CHECKING:
    from pathlib import Path


LOCK: Final = "requirements.lock"
"""In the folder of each peer: the versions of its environment, by hash."""
REFERENCE: Final = "in_graph"
"""The backend whose first losses every peer has to repeat."""
BUILTIN_DATA: Final = ("digits", "synthetic")

Settings = Mapping[str, tuple[object, ...]]
"""The values that a program implements of each setting that could have others."""

_STEP: Final[Settings] = {
    "compute_dtype": ("float32",),
    "jit": ("off",),
    "batch_norm": ("local",),
    "input_dtype": ("float32",),
}
_RESNET50: Final[Settings] = {
    **_STEP,
    "optimizer": ("momentum",),
    "label_smoothing": (0.0,),
}
_SNGAN: Final[Settings] = {**_STEP, "layout": ("cifar",)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PeerInfo(BackendInfo):
    """A program of another framework, which is measured as a backend is."""

    environment: str  # Name of its environment, which ``make setup-peers`` creates.
    # What starts a module with the interpreter of the environment; with the
    # placeholders of a command.
    launch: str
    # By workload, what its step implements of the settings: a module of ``target``.
    programs: Mapping[str, Settings]
    # The module that writes what they begin with; it needs TensorFlow.
    exporter: str = "workloads.peers.export"

    def command(self, workload: str) -> str:
        """Returns what starts its program, from the folder of the sources."""
        return (
            f"build/peers/{self.environment}/bin/python {self.launch}".rstrip()
            + f" -m {self.target}.{workload}"
        )

    @property
    def lock(self) -> str:
        """Its lock file, from the folder of the sources."""
        folder = self.target.replace(".", "/")
        return f"{folder}/{LOCK}"


_LACKS: Final = {
    "synchronous_training": (
        "its first losses are compared with those of in_graph, in every trial"
    )
}

PEERS: dict[str, PeerInfo] = {
    info.name: info
    for info in (
        PeerInfo(
            name="torch_ddp",
            target="workloads.peers.torch_ddp",
            description="PyTorch DistributedDataParallel: a process per replica, gloo",
            kind="program",
            lacks=_LACKS,
            environment="torch",
            launch="-m torch.distributed.run --nnodes 1 --nproc-per-node {replicas}"
            " --master-addr 127.0.0.1 --master-port {port}",
            programs={
                "resnet50": {
                    **_RESNET50,
                    "compute_dtype": ("float32", "mixed_bfloat16"),
                },
                "sngan": _SNGAN,
            },
        ),
        PeerInfo(
            name="jax",
            target="workloads.peers.jax",
            description="JAX: shard_map over the devices of one process",
            kind="program",
            lacks=_LACKS,
            environment="jax",
            launch="",
            programs={"resnet50": _RESNET50, "sngan": _SNGAN},
        ),
    )
}


def exports_dir() -> Path:
    """Returns the folder of what peers begin with, among prepared data."""
    from workloads.data import names  # --help needs none

    return names.cache_dir() / "peers"


def unsupported(settings: Settings, config: Any, data: str) -> str:
    """Returns what of a workload's settings a step does not implement; empty if all."""
    if data not in BUILTIN_DATA:
        return f"data {data!r}, but reads {' and '.join(BUILTIN_DATA)} only"
    for name, values in settings.items():
        setting = getattr(config, name)
        if setting not in values:
            allowed = " and ".join(repr(value) for value in values)
            return f"option {name}={setting!r}, but implements {allowed} only"
    return ""

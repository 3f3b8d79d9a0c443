"""Launchers that number processes, and do not say where the others are.

The processes agree on their addresses through the one with rank 0, the chief, at
``MASTER_ADDR:MASTER_PORT`` (``replicator.cluster.environment.address_exchange``). For
processes of one host, ``mpirun`` of OpenMPI says enough without them.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, ClassVar

from replicator.cluster.environment.base import (
    FIRST_PORT,
    LAST_PORT,
    DetectedEnvironment,
    by_kind,
    members_of,
    read_integer,
    read_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.cluster.environment.address_exchange import Ranks

HOST = "MASTER_ADDR"
PORT = "MASTER_PORT"
MAX_WORLD_SIZE = 65_536
_MAX_PORT = 65_535
_PMIX_RANK = "PMIX_RANK"  # says to programs of MPI that they are in a job


class RankEnvironment(DetectedEnvironment):
    """Variables with the rank and the number of processes; subclasses name them."""

    RANK: ClassVar[str]
    WORLD_SIZE: ClassVar[str]
    LOCAL_RANK: ClassVar[str]
    HOW: ClassVar[str]
    HOW_CHIEF: ClassVar[str] = ""

    def __init__(self, environ: Mapping[str, str]) -> None:
        how = self.HOW
        size = read_integer(
            environ, self.WORLD_SIZE, least=1, most=MAX_WORLD_SIZE, how=how
        )
        rank = read_integer(environ, self.RANK, least=0, most=size - 1, how=how)
        self._members = members_of(environ, size)
        if environ.get(self.LOCAL_RANK):
            self.local_rank = read_integer(
                environ, self.LOCAL_RANK, least=0, most=rank, how=how
            )
        environ = {**self.default_chief(environ, size), **_without_empty(environ)}
        how = f"set {HOST} and {PORT} in every process: the host and a free port of"
        # Not at the top: of the other environments, launchers wait for the import.
        from replicator.cluster.environment.address_exchange import Ranks

        self.ranks: Ranks = Ranks(
            rank=rank,
            world_size=size,
            chief_host=read_text(environ, HOST, how=f"{how} rank 0{self.HOW_CHIEF}"),
            chief_port=read_integer(
                environ,
                PORT,
                least=1,
                most=_MAX_PORT,
                how=f"{how} rank 0{self.HOW_CHIEF}",
            ),
        )

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(cls.RANK)) and bool(environ.get(cls.WORLD_SIZE))

    @classmethod
    def default_chief(cls, environ: Mapping[str, str], size: int) -> dict[str, str]:
        """``MASTER_ADDR`` and ``MASTER_PORT`` where the launcher implies them."""
        del environ, size
        return {}

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        names = (cls.RANK, cls.WORLD_SIZE, cls.LOCAL_RANK, HOST, PORT, _PMIX_RANK)
        return tuple(name for name in names if name in environ)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        return self._addresses(is_trusted=False)

    def own(self) -> tuple[str, int]:
        return self._members[self.ranks.rank]

    def _addresses(self, *, is_trusted: bool) -> dict[str, tuple[str, ...]]:
        from replicator.cluster.environment import address_exchange

        by_rank = address_exchange.agree(self.ranks, is_trusted=is_trusted)
        return by_kind([kind for kind, _ in self._members], by_rank)


class PlainRankEnvironment(RankEnvironment):
    """The variables that PyTorch made common, set by hand or by a launcher."""

    RANK = "RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    HOW = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process"


class OpenMpiEnvironment(RankEnvironment):
    """A process that ``mpirun`` of OpenMPI started."""

    RANK = "OMPI_COMM_WORLD_RANK"
    WORLD_SIZE = "OMPI_COMM_WORLD_SIZE"
    LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
    HOW = "mpirun of OpenMPI sets it: do not change it"
    HOW_CHIEF = ", as by mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"

    @classmethod
    def default_chief(cls, environ: Mapping[str, str], size: int) -> dict[str, str]:
        """This host where all processes are on it; the port follows from the job."""
        job = environ.get("PMIX_NAMESPACE")
        if not job or environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != str(size):
            return {}
        port = FIRST_PORT + zlib.crc32(job.encode()) % (LAST_PORT - FIRST_PORT + 1)
        return {HOST: "127.0.0.1", PORT: str(port)}


class HydraEnvironment(RankEnvironment):
    """A process that ``mpiexec`` of MPICH or Intel MPI started (PMI)."""

    RANK = "PMI_RANK"
    WORLD_SIZE = "PMI_SIZE"
    LOCAL_RANK = "MPI_LOCALRANKID"
    HOW = "mpiexec of MPICH sets it: do not change it"
    HOW_CHIEF = ", as by mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return super().is_present(environ) and bool(environ.get(cls.LOCAL_RANK))


def _without_empty(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if value}

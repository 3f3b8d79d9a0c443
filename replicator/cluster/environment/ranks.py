"""Launchers that number processes, and do not say where the others are.

The processes agree on their addresses through the one with rank 0, the chief, at
``MASTER_ADDR:MASTER_PORT`` (``replicator.cluster.environment.address_exchange``), which
MPI's launchers may say in variables of their own (``mpi_chief``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.environment import roles
from replicator.cluster.environment.base import DetectedEnvironment
from replicator.cluster.environment.variables import read_integer, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.cluster.environment.registration import Ranks

HOST = "MASTER_ADDR"
PORT = "MASTER_PORT"
MAX_WORLD_SIZE = 65_536
_MAX_PORT = 65_535


class RankEnvironment(DetectedEnvironment):
    """Variables with the rank and the number of processes; subclasses name them.

    Attributes:
      RANK: Variable with the rank of this process.
      WORLD_SIZE: Variable with the number of processes.
      LOCAL_RANK: Variable with the rank among the processes of the same host; the
        launcher need not set it.
      HOW: What sets them, for messages.
    """

    RANK: ClassVar[str]
    WORLD_SIZE: ClassVar[str]
    LOCAL_RANK: ClassVar[str]
    HOW: ClassVar[str]

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads the variables; exchanges nothing.

        Raises:
          ClusterConfigError: One is missing or malformed.
        """
        how = self.HOW
        size = read_integer(
            environ, self.WORLD_SIZE, least=1, most=MAX_WORLD_SIZE, how=how
        )
        rank = read_integer(environ, self.RANK, least=0, most=size - 1, how=how)
        self._members = roles.of_tasks(environ, size)
        self.local_rank: int | None = None
        if environ.get(self.LOCAL_RANK):
            self.local_rank = read_integer(
                environ, self.LOCAL_RANK, least=0, most=rank, how=how
            )
        found = self.find_chief(environ, size)
        self._is_found = found is not None and not environ.get(HOST)
        if found is not None:
            environ = {
                **environ,
                HOST: environ.get(HOST) or found[0],
                PORT: environ.get(PORT) or str(found[1]),
            }
        everywhere = "set it in every process, the same: the host and a free port of"
        # Not at the top: of the other environments, launchers wait for the import.
        from replicator.cluster.environment.registration import Ranks

        self.ranks: Ranks = Ranks(
            rank=rank,
            world_size=size,
            chief_host=read_text(environ, HOST, how=f"{everywhere} rank 0"),
            chief_port=read_integer(
                environ, PORT, least=1, most=_MAX_PORT, how=f"{everywhere} rank 0"
            ),
        )

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether the launcher's variables are set."""
        return bool(environ.get(cls.RANK)) and bool(environ.get(cls.WORLD_SIZE))

    @classmethod
    def find_chief(
        cls, environ: Mapping[str, str], size: int
    ) -> tuple[str, int] | None:
        """Returns host and port of rank 0, where the launcher says them.

        Args:
          environ: Environment variables.
          size: How many processes there are.
        """
        del environ, size
        return None

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What the launcher sets, and where the chief is."""
        names = (cls.RANK, cls.WORLD_SIZE, cls.LOCAL_RANK, HOST, PORT)
        return tuple(name for name in names if name in environ)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """What the processes agree on; waits for all of them, once per process.

        Raises:
          ClusterConfigError: Rank 0 is not where the launcher is.
          UnreachableError: Some do not respond.
        """
        return self._agree(is_trusted=False)

    def own(self) -> tuple[str, int]:
        """By rank: a worker, unless ``REPLICATOR_ROLES`` says otherwise."""
        return self._members[self.ranks.rank]

    def config(self, *, i_trust_this_network: bool = False) -> ClusterConfig:
        """The cluster, with everything checked; waits for all processes.

        Args:
          i_trust_this_network: See ``ClusterConfig``.

        Raises:
          ClusterConfigError: It is incomplete or wrong.
          UnreachableError: Some processes do not respond.
        """
        kind, index = self.own()
        return ClusterConfig(
            addresses=self._agree(is_trusted=i_trust_this_network),
            kind=kind,
            index=index,
            local_rank=self.local_rank,
            i_trust_this_network=i_trust_this_network,
        )

    def _agree(self, *, is_trusted: bool) -> dict[str, tuple[str, ...]]:
        from replicator.cluster.environment import address_exchange, mpi_chief

        if self._is_found and self.ranks.rank == 0:
            mpi_chief.check_is_here(self.ranks.chief_host, HOST)
        by_rank = address_exchange.agree(self.ranks, is_trusted=is_trusted)
        return roles.addresses(self._members, by_rank)


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

    @classmethod
    def find_chief(
        cls, environ: Mapping[str, str], size: int
    ) -> tuple[str, int] | None:
        """This host where all processes are on it, otherwise that of mpirun."""
        from replicator.cluster.environment import mpi_chief

        is_one_host = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size)
        return mpi_chief.find(environ, is_one_host=is_one_host)


class HydraEnvironment(RankEnvironment):
    """A process that ``mpiexec`` of MPICH or Intel MPI started (PMI)."""

    RANK = "PMI_RANK"
    WORLD_SIZE = "PMI_SIZE"
    LOCAL_RANK = "MPI_LOCALRANKID"
    HOW = "mpiexec of MPICH sets it: do not change it"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether mpiexec started it; ``srun --mpi=pmi2`` sets no local rank."""
        return super().is_present(environ) and bool(environ.get(cls.LOCAL_RANK))


class PmixEnvironment(RankEnvironment):
    """A process of a launcher that speaks PMIx, such as ``prun``.

    PMIx sets the rank as a variable, and hands out the number of processes through its
    library only; so that comes from ``WORLD_SIZE``.
    """

    RANK = "PMIX_RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    HOW = "PMIx sets PMIX_RANK; set WORLD_SIZE to the number of processes"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether PMIx started this process; the rest is explained if it is missing."""
        return bool(environ.get(cls.RANK))

    @classmethod
    def find_chief(
        cls, environ: Mapping[str, str], size: int
    ) -> tuple[str, int] | None:
        """The host of ``prte`` or ``prterun``."""
        del size
        from replicator.cluster.environment import mpi_chief

        return mpi_chief.find(environ, is_one_host=False)

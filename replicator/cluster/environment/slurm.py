"""Slurm: what ``srun`` sets for each task of a step, and its notations."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from replicator.cluster.environment.base import (
    FIRST_PORT,
    LAST_PORT,
    DetectedEnvironment,
    by_kind,
    members_of,
    read_integer,
    read_text,
)
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NODES = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_RESERVED = "SLURM_STEP_RESV_PORTS"
_HOW = "start this process with srun, which sets it"
_MOST = 2**32  # ids of jobs in a federation have 32 bits
MAX_NODES = 100_000
"""More are a mistake, and would fill the memory before anybody noticed."""
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_PART = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


class SlurmEnvironment(DetectedEnvironment):
    """A step of Slurm; each task is one process, with or without GPUs.

    A process that ``srun`` did not start, such as a batch script, is in a job but not
    in a step, and is not described.

    Ports are those that Slurm reserved for the step (``srun --resv-ports``), otherwise
    they are derived from the ids of job and step, the same in all tasks; that one is
    free is checked when the cluster is joined.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._nodes = expand_nodes(read_text(environ, _NODES, how=_HOW))
        counts = expand_counts(read_text(environ, _TASKS, how=_HOW))
        if len(counts) != len(self._nodes):
            raise ClusterConfigError(
                f"{_TASKS}={environ[_TASKS]!r} counts the tasks of {len(counts)} nodes,"
                f" but {_NODES}={environ[_NODES]!r} has {len(self._nodes)}; start this"
                " process with srun, which sets both"
            )
        self._rank = _number(environ, "SLURM_PROCID")
        self._places = places_of_tasks(counts, _block_size(environ))
        if not 0 <= self._rank < len(self._places):
            raise ClusterConfigError(
                f"SLURM_PROCID={self._rank} is out of range: {_TASKS}="
                f"{environ[_TASKS]!r} makes {len(self._places)} tasks; start this"
                " process with srun, which sets both"
            )
        _check_own_place(environ, self._places[self._rank])
        self._members = members_of(environ, len(self._places))
        self._ports = _ports(environ, max(counts))

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(_NODES)) and bool(environ.get("SLURM_PROCID"))

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """All of Slurm's: programs that start others look at many of them."""
        return tuple(name for name in environ if name.startswith("SLURM_"))

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Node name of each task, and a port for each task of a node."""
        by_rank = tuple(
            f"{self._nodes[node]}:{self._ports[local]}" for node, local in self._places
        )
        return by_kind([kind for kind, _ in self._members], by_rank)

    def own(self) -> tuple[str, int]:
        return self._members[self._rank]


def places_of_tasks(
    counts: Sequence[int], block_size: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Returns index of the node, and number within the node, of each task by rank."""
    given = [0] * len(counts)
    places: list[tuple[int, int]] = []
    while len(places) < sum(counts):
        for node, count in enumerate(counts):
            end = count if block_size is None else min(count, given[node] + block_size)
            places += [(node, local) for local in range(given[node], end)]
            given[node] = end
    return tuple(places)


def derived_ports(job_id: int, step_id: int, num_ports: int) -> tuple[int, ...]:
    """Returns ports: the same in all tasks of a step, rarely those of other steps."""
    span = LAST_PORT - FIRST_PORT + 1 - num_ports
    if span < 0:
        raise ClusterConfigError(
            f"{num_ports} tasks on one node need as many ports, but only"
            f" {LAST_PORT - FIRST_PORT + 1} are used; start fewer tasks per node"
        )
    first = FIRST_PORT + (job_id * 97 + step_id) * num_ports % (span + 1)
    return tuple(range(first, first + num_ports))


def _ports(environ: Mapping[str, str], num_ports: int) -> tuple[int, ...]:
    if environ.get(_RESERVED):
        reserved = expand_ports(environ[_RESERVED])
        if len(reserved) < num_ports:
            raise ClusterConfigError(
                f"{_RESERVED}={environ[_RESERVED]!r} has {len(reserved)} ports, but a"
                f" node has {num_ports} tasks; reserve srun --resv-ports={num_ports}"
            )
        return reserved[:num_ports]
    job_id = _number(environ, "SLURM_JOB_ID")
    return derived_ports(job_id, _number(environ, "SLURM_STEP_ID"), num_ports)


def _block_size(environ: Mapping[str, str]) -> int | None:
    distribution = environ.get("SLURM_DISTRIBUTION", "").partition(":")[0].lower()
    if distribution == "cyclic":
        return 1
    if distribution.startswith("plane"):
        size = environ.get("SLURM_DIST_PLANESIZE") or distribution.partition("=")[2]
        return int(size) if size.isdigit() and int(size) else None
    return None


def _check_own_place(environ: Mapping[str, str], place: tuple[int, int]) -> None:
    reported = (environ.get("SLURM_NODEID"), environ.get("SLURM_LOCALID"))
    expected = tuple(map(str, place))
    if None not in reported and reported != expected:
        raise ClusterConfigError(
            f"SLURM_PROCID={environ['SLURM_PROCID']} is task {reported[1]} of node"
            f" {reported[0]}, not task {expected[1]} of node {expected[0]} as with"
            " consecutive ranks, so the nodes of the other tasks are unknown; use srun"
            " --distribution=block"
        )


def _number(environ: Mapping[str, str], name: str) -> int:
    return read_integer(environ, name, least=0, most=_MOST, how=_HOW)


def expand_nodes(text: str) -> tuple[str, ...]:
    """Returns the names in a list of nodes, such as ``n[0-1,5],gpu-[01-03]``."""
    names: list[str] = []
    for part in _split(text):
        pieces = _PART.split(part)
        plain, inside = pieces[::2], pieces[1::2]
        if not part or not all(map(_PLAIN.fullmatch, plain)):
            raise _malformed_nodes(text, part)
        choices = [_expand_range(text, piece) for piece in inside]
        for chosen in itertools.product(*choices):
            pairs = itertools.zip_longest(plain, chosen, fillvalue="")
            names.append("".join(itertools.chain.from_iterable(pairs)))
            if len(names) > MAX_NODES:
                raise _malformed_nodes(text, f"more than {MAX_NODES} nodes")
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """Returns the counts in a list such as ``2(x2),1``: 2, 2 and 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        repeats = int(match[2] or 1) if match else 0
        if match is None or not 0 < repeats <= MAX_NODES:
            raise ClusterConfigError(
                f"{text!r} is not a list of tasks per node: {part!r} is wrong; Slurm"
                " writes for example '2(x2),1'"
            )
        counts += [int(match[1])] * repeats
    return tuple(counts)


def expand_ports(text: str) -> tuple[int, ...]:
    """Returns the ports in a list such as ``12000-12001,12004``."""
    return tuple(int(number) for number in _expand_range(text, text.strip("[]")))


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _expand_range(text: str, inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_valid = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)
        if not is_valid or not 0 <= int(last) - int(first) < MAX_NODES:
            raise _malformed_nodes(text, part)
        width = len(first)
        found += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return found


def _malformed_nodes(text: str, part: str) -> ClusterConfigError:
    return ClusterConfigError(
        f"{text[:200]!r} is not a list of Slurm: {part[:100]!r} is wrong; Slurm writes"
        " for example 'n[0-1,5],gpu-[01-03]'"
    )

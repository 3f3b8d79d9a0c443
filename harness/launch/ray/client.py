"""The client of a gang on a Ray cluster: reserves its hosts, starts it, ends it.

    python -m harness.launch.ray.client

It reads the gang from its standard input, and ends it when that is closed. Ray is
imported here and not in the harness, which it would burden with its threads. A
placement group with the strategy STRICT_SPREAD reserves all hosts of a gang at once,
each as a whole, so that two gangs never share one: the second waits until the first has
ended. On each host an actor starts the members.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import TYPE_CHECKING, Any

from harness.errors import LaunchError
from harness.launch import engine
from harness.launch.engine import Gang
from harness.launch.ray import cluster
from harness.trial import die_with_parent
from replicator.cluster.environment import RayEnvironment, RayMember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.launch.ray.cluster import RayHost

_START_SEC = 60.0
_STOP_SEC = 20.0
_POLL_SEC = 0.1
_LOST = 1
"""Exit code of a gang of which Ray lost a host."""


def main() -> int:
    """Runs a gang; returns its exit code."""
    die_with_parent.request_death_signal()
    gang = Gang.from_json(sys.stdin.buffer.readline())
    try:
        running = RayGang(gang)
    except LaunchError as error:
        sys.stderr.write(f"{error}\n")
        return engine.REFUSED
    try:
        while (code := running.poll()) is None:
            if select.select([sys.stdin], [], [], _POLL_SEC)[0]:
                return 0  # closed by the harness, or since it has gone
    finally:
        running.cancel()
    sys.stderr.write(f"{running.output()}\n")
    return code


class RayGang:
    """A gang on a Ray cluster: reserved, then started, then ended."""

    def __init__(self, gang: Gang) -> None:
        """Reserves the hosts of a gang."""
        self._gang = gang
        self._output = ""
        self._code: int | None = None
        self._actors: list[Any] = []
        self._pending: list[Any] = []
        self._ray = cluster.connect()
        try:
            self._reserve()
        except BaseException:
            self._ray.shutdown()
            raise

    def _reserve(self) -> None:
        from ray.util.placement_group import placement_group

        hosts = cluster.hosts_of(self._ray.nodes())
        self._bundle = bundle_of(hosts, self._gang.num_hosts)
        self._group = placement_group(
            [self._bundle] * self._gang.num_hosts,
            strategy="STRICT_SPREAD",
            name=self._gang.trial_dir.name,
        )
        self._ready = self._group.ready()

    def poll(self) -> int | None:
        """Exit code of the gang; None while it waits for hosts or runs.

        Starts the members as soon as all hosts are reserved.
        """
        if self._code is None:
            self._code = self._poll()
        return self._code

    def _poll(self) -> int | None:
        ray = self._ray
        if not self._actors:
            found, _ = ray.wait([self._ready], timeout=0)
            if not found:
                return None
            try:
                self._start_members()
            except (ray.exceptions.RayError, LaunchError) as error:
                self._output = one_line(error) + cluster.hint(error, os.environ)
                return _LOST
        if not self._pending:
            self._pending = [actor.poll.remote() for actor in self._actors]
        found, _ = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
        try:
            # Those of a host that was lost are ready at once, and raise.
            codes = [code for codes in ray.get(found) for code in codes]
        except ray.exceptions.RayError as error:
            self._output = f"a host of the gang was lost: {one_line(error)}"
            return _LOST
        if len(found) < len(self._pending):
            return None
        self._pending = []
        if None in codes:
            return None
        return next((code for code in codes if code), 0)

    def _start_members(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from harness.launch.ray import host_members

        ray, gang = self._ray, self._gang
        ray.cloudpickle.register_pickle_by_value(host_members)
        kind = ray.remote(host_members.HostMembers)
        bundles = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        block = gang.members_per_host
        self._actors = [
            kind.options(
                num_cpus=self._bundle["CPU"],
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=index
                ),
            ).remote()
            for index in range(gang.num_hosts)
        ]
        ports = ray.get(
            [actor.free_ports.remote(block) for actor in self._actors],
            timeout=_START_SEC,
        )
        # This host's own name may mean its loopback address on others.
        port = gang.variables[engine.ADDRESS_VARIABLE].rpartition(":")[2]
        address = f"{ray.util.get_node_ip_address()}:{port}"
        everyone = [
            RayMember(
                node_id=bundles[place // block],
                host=nodes[bundles[place // block]],
                port=ports[place // block][place % block],
                kind=member[0],
            )
            for place, member in enumerate(gang.members)
        ]
        variables = [
            {
                **gang.variables,
                engine.ADDRESS_VARIABLE: address,
                "RAY_NODE_ID": member.node_id,  # for whoever reads a log
                "TF_CONFIG": tf_config(RayEnvironment(everyone, place)),
            }
            for place, member in enumerate(everyone)
        ]
        refusals = ray.get(
            [
                actor.start.remote(
                    gang.command,
                    variables[index * block : (index + 1) * block],
                    str(gang.trial_dir),
                )
                for index, actor in enumerate(self._actors)
            ],
            timeout=_START_SEC,
        )
        if any(refusals):
            raise LaunchError(
                f"Ray could not start the members: {'; '.join(filter(None, refusals))};"
                " install this package on every host in the same place, and choose a"
                " --runs-dir on a file system that all hosts share"
            )

    def cancel(self) -> None:
        """Ends all members, and gives the hosts back."""
        from ray.util.placement_group import remove_placement_group

        ray = self._ray
        if not ray.is_initialized():
            return
        try:
            stopping = [actor.stop.remote() for actor in self._actors]
            if stopping:
                ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_SEC)
            for actor in self._actors:
                ray.kill(actor)
            remove_placement_group(self._group)
        finally:
            ray.shutdown()

    def output(self) -> str:
        """Why Ray could not start or keep the gang."""
        return self._output


def bundle_of(hosts: Sequence[RayHost], num_hosts: int) -> dict[str, int]:
    """What is reserved on each host of a gang: the whole of the smallest one."""
    largest = sorted(hosts, key=lambda host: (host.num_cores, host.num_gpus))
    chosen = largest[len(largest) - num_hosts :] if len(largest) >= num_hosts else []
    if not chosen or min(host.num_cores for host in chosen) < 1:
        raise LaunchError(
            f"a gang on {num_hosts} hosts needs as many, but the Ray cluster has"
            f" {sum(host.num_cores > 0 for host in hosts)} with CPUs; add hosts with"
            " 'ray start --address=HOST:PORT', or plan fewer replicas"
        )
    bundle = {"CPU": min(host.num_cores for host in chosen)}
    num_gpus = min(host.num_gpus for host in chosen)
    return bundle | ({"GPU": num_gpus} if num_gpus else {})


def tf_config(environment: RayEnvironment) -> str:
    """Returns what a member finds in ``TF_CONFIG``."""
    kind, index = environment.own()
    return json.dumps(
        {"cluster": environment.addresses(), "task": {"type": kind, "index": index}}
    )


def one_line(error: BaseException) -> str:
    """Returns the first line of a message of Ray, which has many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())

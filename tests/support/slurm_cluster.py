"""A real cluster of Slurm on this machine: a controller and two nodes, for tests.

Each has network, process ids, mounts and host name of its own, so that nothing works
only because everything is one host: names resolve to different addresses, processes of
another node cannot be seen, and a node can die. ``/shared`` stands for what all see:
it is this machine's file system; a folder can be hidden on one node. All of it is gone
when the controlling processes are: nothing is configured on the machine itself.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from results import Store

PROGRAMS = (
    *("setpriv", "unshare", "nsenter", "ip"),
    *("slurmctld", "slurmd", "srun", "sbatch"),
)
_APART = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc")
CONTROLLER = "ctl"
NODES = ("n0", "n1")
_ADDRESSES = {CONTROLLER: "10.77.0.1", "n0": "10.77.0.10", "n1": "10.77.0.11"}
_PATIENCE_SEC = 300.0  # of a wait that does not end otherwise
_POLL_SEC = 0.2
"""Between two looks, each of which may start a command of Slurm."""
_CONF = """
ClusterName=test
SlurmctldHost=ctl(10.77.0.1)
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=3
SlurmUser=root
SlurmdUser=root
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MinJobAge=300
JobRequeue=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,requeue_delay=0
SlurmdParameters=config_overrides
Prolog={folder}/prolog.sh
NodeName=n[0-1] NodeAddr=10.77.0.1[0-1] CPUs={num_cpus} RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# The first process of each: it keeps what is its own until it is killed.
_INIT = """
hostname {name}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
until ip link show up0 >/dev/null 2>&1; do sleep 0.05; done
ip addr add {address}/24 dev up0
ip link set up0 up
{command}
while :; do sleep 1000; done
"""


def missing():
    """Returns why there can be no cluster here; empty if there can."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return (
            f"needs {', '.join(absent)} (apt-get install slurmctld slurmd slurm-client"
            " iproute2)"
        )
    if os.geteuid():
        return "needs root, for nodes with a network of their own"
    tried = subprocess.run(
        [*_APART, "ip", "link", "add", "up0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        f"needs network namespaces: {tried.stderr.strip()}" if tried.returncode else ""
    )


class SlurmCluster:
    """A running cluster."""

    def __init__(self, folder):
        self.folder = folder
        self._first: dict[str, subprocess.Popen[bytes]] = {}

    def start(self):
        """Starts controller and nodes, and waits until the nodes are idle."""
        (self.folder / "state").mkdir()
        hosts = "".join(f"{ip} {name}\n" for name, ip in _ADDRESSES.items())
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + hosts)
        conf = _CONF.format(folder=self.folder, num_cpus=os.cpu_count())
        (self.folder / "slurm.conf").write_text(conf)
        # Fails as long as a test wants it to.
        prolog = self.folder / "prolog.sh"
        prolog.write_text(f"#!/bin/sh\n! test -e {self.folder}/fail-prolog\n")
        prolog.chmod(0o755)
        self._boot(CONTROLLER, f"slurmctld -D -c -f {self.folder}/slurm.conf")
        for name in NODES:
            self.boot_node(name)
        self.wait_for(lambda: self.nodes_in_state("idle") == len(NODES), "idle nodes")

    def boot_node(self, name):
        """Starts a node, also one that was killed."""
        self._boot(name, f"slurmd -D -N {name} -f {self.folder}/slurm.conf &")

    def _boot(self, name, command):
        script = _INIT.format(
            name=name,
            folder=self.folder,
            address=_ADDRESSES[name],
            command=command,
        )
        with (self.folder / f"{name}.out").open("ab") as out:
            self._first[name] = subprocess.Popen(
                # If the tests are killed, nothing of this remains.
                [
                    *("setpriv", "--pdeathsig=KILL"),
                    *(*_APART, "--kill-child", "sh", "-c", script),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        pid = self._first[name].pid
        own = Path("/proc/self/ns/net").readlink()
        network = Path(f"/proc/{pid}/ns/net")
        self.wait_for(lambda: network.readlink() != own, f"network of {name}")
        if name == CONTROLLER:
            _ip("netns", "exec", pid, "link", "add", "up0", "type", "bridge")
        else:
            port = f"p{NODES.index(name)}"
            controller = self._first[CONTROLLER].pid
            # The kernel removes that of a node that was killed a moment later.
            _ip("netns", "exec", controller, "link", "del", port, is_checked=False)
            peer = ("peer", "name", "up0", "netns", pid)
            _ip("link", "add", port, "netns", controller, "type", "veth", *peer)
            for what in (("master", "up0"), ("up",)):
                _ip("netns", "exec", controller, "link", "set", port, *what)

    def command(self, *words, on=CONTROLLER, cwd=None):
        """Returns a command as it is run on the controller, or on a node."""
        pid = self._inside(on).pid
        return [
            "nsenter",
            f"--target={pid}",
            "--all",
            f"--wd={cwd or self.folder}",
            "env",
            f"SLURM_CONF={self.folder}/slurm.conf",
            *map(str, words),
        ]

    def job(self, command, *, log, cwd):
        """Returns what submits a command as a job of both nodes, and ends with it."""
        batch = self.folder / "job.sh"
        words = shlex.join(map(str, command))
        batch.write_text(f"#!/bin/bash\nexec {words}\n", encoding="utf-8")
        submit = ("sbatch", "--wait", f"--nodes={len(NODES)}", "--exclusive")
        return self.command(*submit, f"--output={log}", batch, cwd=cwd)

    def run(self, *words, on=CONTROLLER, cwd=None, timeout_sec=_PATIENCE_SEC, env=None):
        return subprocess.run(
            self.command(*words, on=on, cwd=cwd),
            capture_output=True,
            text=True,
            timeout=timeout_sec,
            check=False,
            env={**os.environ, **(env or {})},
        )

    def nodes_in_state(self, state):
        """Returns how many nodes are in a state."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%t")
        return done.stdout.split().count(state)

    def job_state(self, job):
        """Returns the state of a job, such as RUNNING; of an array, of all its jobs."""
        done = self.run(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"
        )
        return ",".join(sorted(set(done.stdout.split())))

    def wait_for_job(self, job, state, timeout_sec=_PATIENCE_SEC):
        self.wait_for(
            lambda: self.job_state(job) == state, f"{state} of job {job}", timeout_sec
        )

    def wait_for(self, is_so, what, timeout_sec=_PATIENCE_SEC):
        """Waits until something holds, or fails with the logs."""
        deadline = time.monotonic() + timeout_sec
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} in {timeout_sec:g} s\n{self.logs()}")
            time.sleep(_POLL_SEC)

    def processes(self, node, word=""):
        """Returns the processes of jobs on a node: all but Slurm's daemon."""
        found = {}
        for process in self._inside(node).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                text = " ".join([process.name(), *process.cmdline()])
                is_own = process.name() in ("slurmd", "sleep", "slurmctld")
                if not is_own and word in text:
                    found[process.pid] = text
        return found

    def wait_until_free(self, word="", timeout_sec=_PATIENCE_SEC):
        """Waits until no process of jobs, or none with a word, is on any node."""
        self.wait_for(
            lambda: not any(self.processes(node, word) for node in NODES),
            "end of all processes",
            timeout_sec,
        )

    def kill(self, node, *words):
        """Sends SIGKILL to the processes of jobs on a node that match a word."""
        for word in words:
            for pid in self.processes(node, word):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill_node(self, name):
        """Ends a node with all its processes, as a loss of power does."""
        self._first[name].kill()
        self._first.pop(name).wait()

    def logs(self):
        """Returns the ends of all logs."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"-- {p.name}\n{p.read_text()[-1500:]}" for p in sorted(paths))

    def stop(self):
        for process in self._first.values():
            process.kill()
        for process in self._first.values():
            process.wait()
        self._first.clear()

    def _inside(self, name):
        """Returns the first process of a host, seen from here."""
        (first,) = psutil.Process(self._first[name].pid).children()
        return first


def _ip(*words, is_checked=True):
    if words[:2] == ("netns", "exec"):
        target, rest = words[2], words[3:]
        command = ["nsenter", f"--net=/proc/{target}/ns/net", "ip", *map(str, rest)]
    else:
        command = ["ip", *map(str, words)]
    subprocess.run(command, check=is_checked, capture_output=True)


def finished(folder, study="s"):
    """By trial that has ended, its status; none before the study exists."""
    root = folder / "runs" / study
    if not (root / "plan.json").exists():
        return {}
    trials = Store.open(root).trials()
    return {trial.trial_id: trial.status for trial in trials if trial.status}


@contextlib.contextmanager
def temporary():
    """A cluster in a folder of its own; skips the test where that is impossible."""
    if reason := missing():
        pytest.skip(f"a cluster of Slurm {reason}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with running(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(folder):
    """Runs a cluster while the ``with`` block runs."""
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


SRUN = f"""#!{sys.executable}
import itertools, os, subprocess, sys
words = [*itertools.takewhile(lambda word: word[:2] == "--", sys.argv[1:])]
given = dict(word[2:].split("=", 1) for word in words if "=" in word)
command = sys.argv[1 + len(words):]
nodes, tasks = int(given["nodes"]), int(given["ntasks"])
own = {{
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    "SLURM_STEP_NODELIST": f"node[1-{{nodes}}]",
    "SLURM_STEP_NUM_TASKS": str(tasks),
    "SLURM_STEP_TASKS_PER_NODE": f"{{tasks // nodes}}(x{{nodes}})",
}}
running = [
    subprocess.Popen(command, env={{
        **os.environ, **own,
        "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank * nodes // tasks),
    }})
    for rank in range(tasks)
]
sys.exit(max(abs(one.wait()) for one in running))
"""
PROGRAMS = {
    "sinfo": '#!/bin/sh\necho "main* 2"; echo "big 8"\n',
    "sbatch": '#!/bin/sh\ncat > "$SUBMITTED"\n'
    'echo "$SBATCH_PARTITION $SBATCH_TIMELIMIT" >> "$SUBMITTED"\necho "42;cluster"\n',
    "squeue": "#!/bin/sh\n",
    "scancel": "#!/bin/sh\n",
    "srun": SRUN,
}


def install_stand_ins(folder, monkeypatch):
    """Puts the programs into PATH; returns the file that gets what is submitted."""
    for name, text in PROGRAMS.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITTED", str(folder / "submitted"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder / "submitted"

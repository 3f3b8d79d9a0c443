"""Stands in for ``harness.trial.worker``: the true measuring loop, a fake program.

No TensorFlow. The clock is faked, so step times are a function of the trial's spec.
``FAKE_BEHAVIOR`` chooses what goes wrong, such as ``in_graph:2:hang`` (several are
separated by commas, ``*`` matches everything, ``twin`` the A/A control). In a cluster,
``rank1_sigkill`` and the like act on rank 1, and the others lose it. With
``FAKE_ACTOR`` it has a child and memory that both share.

As the worker of a gate (``--gate``), its steps take longer where its sources say so:
the factors of time and accuracy are in ``slowdown.txt`` and ``learned.txt`` beside the
packages that run, and what a step has in ``counted.json``, so two revisions differ by
what their trees hold. Where a trial is forked, whose modules are those of the tests,
they are beside those that it would have imported. Steps of one process then vary by
less than 1 %.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness
from harness.client.scaling_client import Channel, RankFile, rank_path
from harness.machine.allocation import processes_of_trial
from harness.trial import measure
from harness.trial.measure import exact_metric
from results import Control, Environment, TrialSpec, trial_id


class ResourceExhaustedError(Exception):
    pass


class WorkerLostError(Exception):
    pass


Check = dataclasses.make_dataclass("Check", ["name", "is_passed", "detail"])
Metric = dataclasses.make_dataclass(
    "Metric",
    [
        *("name", "value", "unit", "num_examples", "low", "high", "confidence"),
        *("method", ("protocol", str, "")),
    ],
)


class Clock:
    """Time passes only in steps."""

    now_ns = 1_000_000_000

    def __call__(self):
        return self.now_ns


class Program:
    """A program whose step times follow from the trial's id, whatever the code is."""

    num_parameters = 25_557_032
    flops_per_example = 12_000_000_000
    compute_dtype = "float32"

    def __init__(self, spec, behavior, clock):
        self.per_replica_batch_size = spec.per_replica_batch_size
        self.global_batch_size = spec.global_batch_size
        if spec.control is Control.INDEPENDENT:
            self.global_batch_size = spec.per_replica_batch_size
        self._num_replicas = spec.num_replicas
        self._behavior = behavior
        self._clock = clock
        self._num_steps = 0
        self._trial_sec = float(os.environ.get("FAKE_STEP_SEC", "0"))
        # Else a verdict would be drawn again with each change of the code.
        text = trial_id(spec.model_copy(update={"code_digest": ""}))
        jitter = int(text[:4], 16) / 0xFFFF
        self._step_ns = int(1e9 * (0.1 + 0.01 * jitter) * spec.global_batch_size / 8)
        if (times := os.environ.get("FAKE_STEP_TIMES")) is not None:
            own = json.loads(times)[spec.repetition_index]
            self._step_ns = int(1e9 * own[spec.control is Control.AA])

    def run(self, num_steps=1):
        assert num_steps == 1
        self._num_steps += 1
        if self._num_steps == 3:
            misbehave(self._behavior)
        time.sleep(self._trial_sec)
        self._clock.now_ns += self._step_ns + 1_000 * self._num_steps
        bad_step = {"nan": 4, "late_nan": 9, "last_nan": 15}.get(self._behavior)
        is_bad = self._num_steps == bad_step
        return float("nan") if is_bad else 2.3 / self._num_steps

    def dispatch(self):
        loss = self.run()
        return lambda: loss

    def losses_of_replicas(self):
        return [2.3] * (self._num_replicas - 1) + [float("nan")]

    def save(self, directory):
        """Writes a file that says after how many steps; all ranks may."""
        if self._behavior == "bad_weights" and self._num_steps > 10:
            raise FloatingPointError("variable 'stem/kernel' is not finite")
        Path(directory).mkdir(exist_ok=True)
        prefix = Path(directory) / "ckpt-1"
        prefix.with_suffix(".index").write_text(str(self._num_steps), encoding="utf-8")
        return str(prefix)

    def sanity(self):
        is_passed = self._behavior != "failed_checks"
        return [Check("in_sync", is_passed, "variables of replica 1 differ")]

    def evaluate(self):
        top_1 = 0.5 if self._num_steps <= 6 else 1 - 3 / self._num_steps
        low, high = top_1 - 0.05, top_1 + 0.05
        return [Metric("top_1", top_1, "", 359, low, high, 0.95, "Wilson")]

    def samples(self):
        return f"picture after {self._num_steps}".encode()

    def pause(self):
        pass

    def resume(self):
        pass

    def start_window(self):
        self._first_of_window = self._num_steps

    def window_metrics(self):
        count = self._num_steps - self._first_of_window
        return [Metric("steps_in_window", count, "", count, count, count, 0.95, "")]

    def num_environment_steps(self):
        return 7 * self._num_steps

    def agree(self, value):
        return value

    def explain(self):
        return "no collectives"


GRANDCHILD = """
import os, sys, time, signal
if os.fork():
    sys.exit()
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


def misbehave(what):
    """Does what the directory requests; other behaviors have no effect here."""
    if what == "fail_red":
        raise RuntimeError("[red]no[/red] such op")
    if what == "fail":
        raise RuntimeError("the reducer is out of paper\nsecond line")
    if what == "lose":
        time.sleep(0.5)
        raise WorkerLostError("worker 1 ended")
    if what == "oom":
        raise ResourceExhaustedError("OOM when allocating tensor with shape[9,9]")
    if what == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit0":
        os._exit(0)
    if what == "exit3":
        sys.stderr.write("libfoo: cannot open shared object\n")
        sys.stderr.flush()
        os._exit(3)
    if what == "hang":
        time.sleep(600)
    if what == "hang_with_grandchild":
        # Leaves the session and is adopted by init: the hardest one to find.
        path = os.environ["FAKE_GRANDCHILD_FILE"]
        subprocess.run([sys.executable, "-c", GRANDCHILD, path], check=True)
        time.sleep(600)


def behavior_of(spec):
    if spec.control is Control.MATCH:  # rules are about what is measured
        name = f"{spec.backend}:{spec.num_replicas}"
        return "fail" if os.environ.get("FAKE_MATCH_FAILS") == name else "ok"
    for rule in filter(None, os.environ.get("FAKE_BEHAVIOR", "").split(",")):
        backend, num_replicas, behavior = rule.split(":")
        is_size = num_replicas in ("*", str(spec.num_replicas))
        if backend in ("*", spec.backend, spec.control.value) and is_size:
            return behavior
    return "ok"


def changes_of(spec):
    """Returns what the first steps change; wrong for the case ``FAKE_UNMATCHED``."""
    case = f"{spec.backend}:{spec.num_replicas}"
    sketch = [0.0 if os.environ.get("FAKE_UNMATCHED") == case else 1.0, 2.0]
    return [{"group": "model", "name": "network", "sketch": sketch}]


def prepare(trial_dir):
    if (counter := os.environ.get("FAKE_COUNT_FILE")) is not None:
        with Path(counter).open("a", encoding="utf-8") as file:
            file.write(f"{trial_dir.name}\n")
    if os.environ.get("FAKE_ACTOR"):
        start_actor()


def start_actor():
    """Starts a process that shares memory with this one, as actors of D4PG do."""
    descriptor = os.memfd_create("d4pg-streams")
    os.write(descriptor, b"1" * 4096)
    code = "import mmap, sys; of = mmap.mmap(int(sys.argv[1]), 4096); sys.stdin.read()"
    subprocess.Popen(
        [sys.executable, "-c", code, str(descriptor)],
        stdin=subprocess.PIPE,
        pass_fds=(descriptor,),
    )


class NotingChannel(Channel):
    """Notes in the file ``FAKE_TOLD`` what each is told, in order.

    None is built before another one has started, or all have: ``FAKE_COUNT`` of them.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._note("starts")

    def ask(self, state, **facts):
        if state == "built":
            while (words := self._told.read_text().split()).count("starts") < min(
                words.count("built") + 2, int(os.environ["FAKE_COUNT"])
            ):
                time.sleep(0.01)
            time.sleep(0.05)
            self._note("built")
        command = super().ask(state, **facts)
        self._note(*command.values())
        return command

    def _note(self, *words):
        spec = json.loads(Path(sys.argv[1], "spec.json").read_bytes())
        name = ":".join(str(spec[k]) for k in ("backend", "num_replicas", "control"))
        with self._told.open("a") as file:
            file.write(" ".join([name, *map(str, words)]) + "\n")

    @property
    def _told(self):
        return Path(os.environ["FAKE_TOLD"])


class Memory:
    method = "faked"

    def start(self):
        pass

    def sample(self):
        pass

    def peak_bytes(self):
        return 2**30


def write_products(writer, spec):
    """Writes what a matrix product on each GPU here would: the last is slow."""
    if spec.device != "gpu":
        return
    if os.environ.get("FAKE_NO_PRODUCT"):
        writer.write("gpu_canary", tflops=[], reason="OOM when allocating tensor")
        return
    num_gpus = 1 if "TF_CONFIG" in os.environ else spec.num_replicas
    rates = [600.0] * num_gpus
    if num_gpus > 1:
        rates[-1] = 480.0
    writer.write("gpu_canary", tflops=rates, reason="")
    if num_gpus > 1:
        writer.write("nccl", version="2.25.1")


def rank_of_several():
    if (config := os.environ.get("TF_CONFIG")) is not None:
        return int(json.loads(config)["task"]["index"])
    if os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return int(os.environ["SLURM_PROCID"])
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return int(os.environ["RANK"])
    if os.environ.get("REPLICATOR_NUM_WORKERS", "1") != "1":
        return int(os.environ["JOB_COMPLETION_INDEX"])
    return None


def end_with_harness():
    os.read(sys.stdin.fileno(), 1)  # nothing is written: it ends with the harness
    os.killpg(os.getpid(), signal.SIGKILL)


def run(make_program=Program, count=None):
    trial_dir = Path(sys.argv[1])
    own = rank_of_several()
    rank = own or 0
    if own is None:
        threading.Thread(target=end_with_harness, daemon=True).start()
    spec = TrialSpec.model_validate_json((trial_dir / "spec.json").read_bytes())
    env = Environment.model_validate_json((trial_dir / "env.json").read_bytes())
    if own is None:
        os.sched_setaffinity(0, env.placement.cpusets[0])
    assert set(env.placement.cpusets[rank]) == os.sched_getaffinity(0)
    assert "tensorflow" not in sys.modules
    if spec.control is not Control.MATCH:
        prepare(trial_dir)
    clock, behavior = Clock(), behavior_of(spec)
    if behavior.startswith("rank1_"):
        behavior = behavior.removeprefix("rank1_") if rank == 1 else "lose"
    writer = RankFile(rank_path(trial_dir, rank), clock)

    def build():
        clock.now_ns += 5_000_000_000
        if behavior.startswith("build_"):
            misbehave(behavior.removeprefix("build_"))
        if spec.control is Control.MATCH:
            for change in changes_of(spec):
                writer.write("change", **change)
        return make_program(spec, behavior, clock)

    try:
        measure.measure_trial(
            build,
            spec,
            writer,
            example_unit="images",
            memory=Memory(),
            clock=clock,
            channel=(
                NotingChannel if "FAKE_TOLD" in os.environ else Channel
            ).from_environment(rank, processes_of_trial(spec).num_ranks),
            measure_peak=lambda dtype: (4e12 + rank, f"faked, in {dtype}"),
            before_warmup=lambda: write_products(writer, spec),
            run_counted=count and functools.partial(count, spec.control is Control.AA),
        )
    except Exception as error:  # noqa: BLE001 - as in the worker
        writer.fail(error)
        return 1
    finally:
        writer.close()
    return 0


def main():
    return run()


# The worker of a gate.
_COUNTED = {"graph_nodes": 100, "collective_bytes": 1030}


def read_of_sources(name, default):
    """Returns what a file of the sources has as JSON."""
    imported = Path(harness.__file__).resolve().parents[1]
    path = Path(os.environ.get("FORKED_TRIAL_OF", imported)) / name
    return json.loads(path.read_text()) if path.is_file() else default


class GateProgram(Program):
    """A program whose step takes 0.1 s times the factor of its sources."""

    def __init__(self, spec, *arguments):
        super().__init__(spec, *arguments)
        factor = float(read_of_sources("slowdown.txt", 1.0))
        # Repetitions vary so that no A/A control can differ from its case by chance.
        is_slower = (spec.repetition_index + (spec.control is Control.AA)) % 2
        self._step_ns = round(0.1e9 * (1.005 if is_slower else 1.0) * factor)

    def evaluate(self):
        factor = float(read_of_sources("learned.txt", 1.0))
        (metric,) = super().evaluate()
        return [dataclasses.replace(metric, value=metric.value * factor)]


def run_counted(is_aa_control, run_step):
    """A control counts otherwise, and is compared with nothing."""
    run_step()
    found = read_of_sources("counted.json", _COUNTED)
    return [
        exact_metric(name, value + is_aa_control, unit="", n=1, protocol="")
        for name, value in found.items()
    ]


def gate():
    return run(GateProgram, run_counted)


if __name__ == "__main__":
    if sys.argv[1] == "--gate":
        del sys.argv[1]
        sys.exit(gate())
    sys.exit(main())

"""Display names: what readers call workloads, metrics, machines, parts of a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from reports.words import formats

if TYPE_CHECKING:
    from reports.view import View
    from results.records.measuring import MachineState
    from results.records.models import Environment, MetricFacts, TrialSpec
    from results.study.cases import Case

WORKLOADS = {
    "resnet50": "ResNet-50",
    "sngan": "SN-GAN",
    "d4pg": "D4PG",
    "keras_fit": "Keras fit",
    "transformer": "Transformer",
}
PROJECT = "replicator-harness"
ABOUT_PROJECT = "TF-Replicator (Buchlovsky et al. 2019) on TensorFlow 2"
LICENCE = "Apache-2.0"
BACKENDS = {
    "single": "one replica on one device",
    "in_graph": "TF-Replicator: replicas linked into one graph in one process",
    "multi_worker": "TF-Replicator: a worker process per replica, a program in each",
    "multi_worker_in_graph": "TF-Replicator: replicas of all workers in one graph",
    "async": "TF-Replicator: asynchronous workers with parameter servers",
    "dtensor": "one step over a mesh of devices, split by DTensor",
    "tf_mirrored": "tf.distribute.MirroredStrategy with the stock Keras update",
    "tf_multi_worker": "tf.distribute.MultiWorkerMirroredStrategy",
    "tpu": "tf.distribute.TPUStrategy",
    "tf_parameter_server": "tf.distribute.ParameterServerStrategy",
    "torch_ddp": "PyTorch DistributedDataParallel: a process per replica, gloo",
    "jax": "JAX: shard_map over the devices of one process",
    "horovod": "Horovod with TensorFlow: a process per replica, gloo",
}
"""What a reader who has never seen the project must know of a backend; one line."""
_SHORT = {
    "tf_mirrored": "MirroredStrategy",
    "tf_multi_worker": "MultiWorkerMirroredStrategy",
    "tf_parameter_server": "ParameterServerStrategy",
    "tpu": "TPUStrategy",
    "torch_ddp": "PyTorch DDP",
    "jax": "JAX",
    "horovod": "Horovod",
}
PARTS: Final = {
    "alone": (
        "one replica alone",
        "the step of one replica, with its own input and update",
    ),
    "ideal": (
        "ideal: one replica, scaled",
        "the step of the baseline, times the examples per replica relative to it",
    ),
    "computing": (
        "more CPU time",
        (
            "the same examples take more CPU time: shared caches and memory bandwidth,"
            " smaller batches, the work of collectives"
        ),
    ),
    "run_queue_delay": (
        "waiting for a core",
        "threads that could run have no core: others have it",
    ),
    "idle": (
        "idle cores",
        "cores without work: waiting for collectives, the slowest replica or input",
    ),
    "contention": (
        "contention",
        (
            "programs that never communicate are slower beside each other: memory"
            " bandwidth, caches, clocks"
        ),
    ),
    "exposed_communication": (
        "exposed communication",
        "what the step waits for collectives",
    ),
    "input": (
        "input",
        "what the step waits for its batches, longer than one replica does",
    ),
    "imbalance": (
        "imbalance",
        "what the slowest process takes longer than the fastest",
    ),
    "update": ("update", "what the optimizer takes longer than at one replica"),
    "unexplained": ("unexplained", "what no other part has"),
    "step": ("step", "all of it"),
}
"""Of a step (``results/figures/lost_time.py``): the name of each, and its meaning."""
_DEVICES = {"cpu": "core", "gpu": "GPU"}
_NUMBERS = [
    *("no", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
]
_NOISE = re.compile(
    r"\((?:R|TM|C)\)|\b\d+-Core\b|\bCPU\b|\bProcessor\b|@.*$", re.IGNORECASE
)
_LONGEST_MODEL = 40


def workload(name: str) -> str:
    return WORKLOADS.get(name, name)


def metric(name: str, metrics: Mapping[str, MetricFacts]) -> str:
    if name in metrics:
        return metrics[name].title
    words = name.replace("_", " ").strip()
    return f"{words[:1].upper()}{words[1:]}"


def processor(model: str) -> str:
    """Returns a processor's model without trade marks and clock."""
    words = " ".join(_NOISE.sub(" ", model).split()) or model
    return words if len(words) <= _LONGEST_MODEL else f"{words[:_LONGEST_MODEL]}…"


def machine(environments: Sequence[Environment]) -> str:
    """Returns where trials ran: '2 cores of an AMD EPYC'."""
    # Trials have different numbers of GPUs: the most are the machine's.
    environment = max(environments, key=lambda env: len(env.gpus))
    if environment.gpus:
        gpu = processor(environment.gpus[0])
        return f"{formats.count(len(environment.gpus), 'GPU')} ({gpu})"
    cores = formats.count(environment.placement.num_available_cores, "core")
    name = processor(environment.cpu_model)
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"{cores} of {article} {name}"


def backend(name: str) -> str:
    return BACKENDS.get(name, "a backend of an installed package")


def short(name: str) -> str:
    return _SHORT.get(name, name)


def devices(spec: TrialSpec) -> str:
    """Returns what the replicas of a trial have together: two cores."""
    number = spec.num_replicas * (spec.cores_per_replica if spec.device == "cpu" else 1)
    counted = formats.count(number, _DEVICES.get(spec.device, "replica"))
    digits, _, noun = counted.partition(" ")
    return f"{_NUMBERS[number] if number < len(_NUMBERS) else digits} {noun}"


def title(view: View) -> str:
    """Returns the question that the report answers, in plain words."""
    planned = view.study.planned
    subject = view.study.plan.study
    if planned:
        subject = workload(planned[0].spec.workload)
    where = ""
    if view.study.environments:
        where = f" on {machine(view.study.environments)}"
    is_gate = any(entry.spec.revision for entry in planned)
    question = "did it get slower" if is_gate else "how well does it scale"
    return f"{subject}{where}: {question}?"


def commits_text(cases: Iterable[Case]) -> str:
    """Returns the commits of the code that was measured; empty if not recorded."""
    return ", ".join(sorted({state.commit_text for state in committed(cases)}))


def committed(cases: Iterable[Case]) -> Iterator[MachineState]:
    for case in cases:
        for env in case.environments:
            state = env.machine_state
            if state is not None and state.git_commit is not None:
                yield state

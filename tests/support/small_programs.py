"""Programs with small networks, for what does not depend on the size of a network.

A program that runs a few steps is traced and optimized for most of its time. These have
every kind of layer, of whose repetitions most are left out.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import small_fit

from workloads import catalog, controls
from workloads.d4pg.capacity import Share
from workloads.d4pg.control import EnvironmentSpec
from workloads.d4pg.streams import StepStreams
from workloads.resnet50 import model

# One doubling of the generator, two blocks of the discriminator; one hidden layer.
OPTIONS = {
    "d4pg": {"policy_sizes": "16", "critic_sizes": "16"},
    "keras_fit": {"model": f"{small_fit.__file__}:small", "num_classes": 10},
    "sngan": {"layout": "imagenet", "image_size": 8},
    "transformer": {
        "num_layers": 1,
        "width": 16,
        "num_heads": 2,
        "feed_forward_width": 32,
        "sequence_length": 2,
    },
}


def published(name, **options):
    """The published settings; of D4PG from states, unless pixels are asked for."""
    states = {"observations": "state"} if name == "d4pg" else {}
    return catalog.make_config(name, "paper", {**states, **options})


def build(name, repl, **settings):
    """Builds the smoke preset of a workload with a small network."""
    with short() if name == "resnet50" else contextlib.nullcontext():
        return build_whole(name, repl, **{**OPTIONS.get(name, {}), **settings})


def build_whole(
    name,
    repl,
    *,
    preset="smoke",
    data="synthetic",
    per_replica_batch_size=4,
    seed=1,
    **options,
):
    """Builds a preset of a workload."""
    return catalog.WORKLOADS[name].build(
        repl,
        preset=preset,
        data=data,
        per_replica_batch_size=per_replica_batch_size,
        seed=seed,
        options=options,
    )


def match(make, repl):
    """Runs the first steps as a match does: losses, changes and the program."""
    changes = []
    program = controls.MatchedProgram(
        make(controls.MatchingReplicator(repl)),
        lambda **fields: changes.append(SimpleNamespace(**fields)),
    )
    losses = [program.run() for _ in range(controls.NUM_STEPS)]
    return losses, changes, program


# The stem, three convolutions of each block and its projection.
NUM_CONVOLUTIONS = 1 + 2 * (3 + 1)


@contextlib.contextmanager
def short():
    """Makes networks that are built inside short: one block in each of two stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "NUM_BLOCKS", (1, 1))
        patch.setattr(model, "WIDTHS", (8, 16))
        yield


ROOT = Path(__file__).resolve().parents[2]


def make_streams(num_streams=1, steps_per_stream=100, num_actors=1, **changes):
    fields = {"observation_shape": (1,), "observation_dtype": "float32", **changes}
    share = Share(
        num_actors=num_actors,
        num_streams=num_streams,
        steps_per_stream=steps_per_stream,
        min_size=1,
    )
    return StepStreams(share, EnvironmentSpec(action_size=1, **fields))


@contextlib.contextmanager
def child(code, *words, descriptor=None):
    """A Python program, which may use a descriptor that is its last word."""
    passed = () if descriptor is None else (descriptor,)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, *map(str, passed)],
        pass_fds=passed,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()

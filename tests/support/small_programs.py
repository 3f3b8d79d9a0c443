"""Programs with small networks, for what does not depend on the size of a network.

A program that runs a few steps is traced and optimized for most of its time. These have
every kind of layer, of whose repetitions most are left out.
"""

import contextlib
from types import SimpleNamespace

import small_fit
from short_resnet import short

from workloads import catalog, controls

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

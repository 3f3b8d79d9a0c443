"""The command line of a training that stands by itself (``workloads/NAME/train.py``).

Its options are the fields of the recipe's configuration, so nothing is listed twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

import keras

import replicator
from workloads.spec import ABOUT

if TYPE_CHECKING:
    from workloads.spec import WorkloadInfo

_OF_REPLICATOR = "external_writes"  # an option of ``replicator.create``


def main(description: str | None, info: WorkloadInfo, training: Any) -> None:
    args = parse(description, info)
    repl = replicator.create(args.backend, num_replicas=args.replicas)
    train(repl, training(repl, args.config, **args.batches), args)


def parse(description: str | None, info: WorkloadInfo) -> argparse.Namespace:
    """Returns where to run and how long, with ``config``, ``batches`` and ``info``."""
    presets = {preset.name: preset.config for preset in info.presets}
    (usual,) = (each for each in info.presets if each.name == info.default_preset)
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--preset",
        choices=[*presets],
        default=usual.name,
        help="settings to start from",
    )
    add("--backend", default="in_graph", help="in_graph, multi_worker, tf_mirrored...")
    add("--replicas", type=int, default=1, help="copies of the step that train")
    add("--per-replica-batch-size", type=int, default=usual.per_replica_batch_size)
    about_data = f"a data set, or synthetic (default {usual.data})"
    add("--data", default=usual.data, help=about_data)
    add("--steps", type=int, default=100, help="training steps (default 100)")
    add("--seed", type=int, default=0, help="of weights, order and noise (default 0)")
    published = presets.get("paper") or type(next(iter(presets.values())))()
    settings = parser.add_argument_group(
        "settings of the recipe", "in brackets: the paper's values"
    )
    names = []
    for field in dataclasses.fields(published):
        if field.name != _OF_REPLICATOR:
            names.append(field.name)
            value = getattr(published, field.name)
            about = field.metadata.get(ABOUT, "")
            kind: Any = _boolean if isinstance(value, bool) else type(value)
            settings.add_argument(
                "--" + field.name.replace("_", "-"),
                type=kind,
                metavar=type(value).__name__.upper(),
                help=f"{about} [{value}]".strip().replace("%", "%%"),
            )
    args = parser.parse_args()
    options = {n: v for n in names if (v := getattr(args, n)) is not None}
    try:
        args.config = info.make_config(args.preset, options)
    except ValueError as error:
        parser.error(str(error))
    args.batches = {
        "data": args.data,
        "per_replica_batch_size": args.per_replica_batch_size,
        "seed": args.seed,
    }
    args.info = info
    keras.utils.set_random_seed(args.seed)
    return args


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return text == "true"


def train(repl: replicator.Replicator, made: Any, args: argparse.Namespace) -> None:
    """Runs steps of a ``Training``, shows losses and rates, then what was learned."""
    inputs = repl.make_input_iterator(made.input_fn)
    progress = Progress(made, args)
    for step in range(args.steps):
        outputs = made.train(repl, inputs, step)
        progress.update(step + 1, repl.reduce("mean", outputs["loss"]))
    evaluate(made, args)
    made.close()


def evaluate(made: Any, args: argparse.Namespace) -> None:
    for metric in made.evaluate(args.info.metrics):
        figure = f"{metric.name}: {metric.value:.3f} (n = {metric.num_examples})"
        sys.stdout.write(f"{figure}\n")


class Progress:
    """A progress bar with the loss of each step and the rate since the step before."""

    def __init__(self, made: Any, args: argparse.Namespace) -> None:
        self._rate = f"{args.info.example_unit}/s"
        self._examples_per_step = made.global_batch_size
        self._bar = keras.utils.Progbar(
            args.steps, stateful_metrics=("loss", self._rate), unit_name="step"
        )
        self._before = time.perf_counter()

    def update(self, num_steps: int, loss: Any) -> None:
        value, now = float(loss), time.perf_counter()
        rate = self._examples_per_step / (now - self._before)
        self._bar.update(num_steps, [("loss", value), (self._rate, rate)])
        self._before = now
        sys.stdout.flush()

"""What peers begin with and read, what they lack; they repeat our losses."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from command_lines import overridden
from small_programs import build_whole
from study_files import lines_of

from harness import ExitCode, PlanError, main
from harness.client.scaling_client import rank_path
from harness.command import peers
from results import Control
from workloads import WORKLOADS
from workloads.data import DIGITS, UNCHANGED
from workloads.peers import Export, Share
from workloads.resnet50 import GoyalSchedule
from workloads.sngan import LinearDecay

ROOT = Path(__file__).resolve().parents[3]
ROUNDING = 1e-5  # relative, of sums in float32 in another order


def make_export(**settings):
    rng = np.random.default_rng(0)
    fields = {
        "config": {"image_size": 12},
        "num_replicas": 2,
        "per_replica_batch_size": 3,
        "num_train_examples": 10,
        "augmentation": dataclasses.asdict(DIGITS),
        "losses": [0.1, 0.2, 1 / 3],
    }
    return Export(
        settings={**fields, **settings},
        arrays={
            "weights/model.stem.kernel": rng.normal(size=(3, 3, 2, 4)).astype("f4"),
            "weights/model.stem.norm.moving_mean": np.zeros(4, "f4"),
            "batches/image": rng.normal(size=(3, 2, 3, 12, 12, 3)).astype("f4"),
            "batches/label": rng.integers(0, 10, (3, 2, 3)).astype("i4"),
            "data/image": rng.integers(0, 256, (10, 8, 8, 3)).astype("u1"),
            "data/label": np.arange(10, dtype="i4"),
        },
    )


def test_programs_of_peers_need_no_package_that_ours_needs():
    """Their environments have NumPy and their framework."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(['replicator', 'lazy_loader'])\n"
        "from workloads.peers import EXPORT_VARIABLE, Export, Share, inputs"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_an_export_is_read_bit_by_bit(tmp_path):
    export = make_export()
    export.arrays["weights/odd"] = np.array([-0.0, 1e-45, np.pi], "f4")
    export.write(tmp_path / "a" / "b")
    found = Export.read(tmp_path / "a" / "b")

    assert json.loads(json.dumps(export.settings)) == found.settings
    assert export.arrays.keys() == found.arrays.keys()
    for name, value in export.arrays.items():
        assert value.dtype == found.arrays[name].dtype
        assert value.tobytes() == found.arrays[name].tobytes()
    assert [tmp_path / "a" / "b"] == [*(tmp_path / "a").iterdir()]
    assert 72 + 3 == found.num_parameters  # moving statistics are not trained


def test_each_process_has_its_replicas_of_the_first_batches_and_draws():
    export = make_export()
    rows = np.arange(12.0).reshape(2, 3, 2)
    export.arrays["draws/latents"] = rows

    def parts_of(process, num_processes):
        share = Share(export, process, num_processes)
        batches, draws = share.first_batches(), share.first_draws()
        assert 3 == len(batches)
        return [*(part for batch in batches for part in batch), draws["latents"]]

    whole, one, other = parts_of(0, 1), parts_of(0, 2), parts_of(1, 2)
    for values, *halves in zip(whole, one, other, strict=True):
        np.testing.assert_array_equal(values, np.concatenate(halves))
    np.testing.assert_array_equal(rows.reshape(6, 2), whole[-1])
    labels = export.arrays["batches/label"]
    np.testing.assert_array_equal(labels[0].ravel(), whole[1])


def test_later_draws_are_own_and_of_the_same_kind():
    export = make_export(config={"num_classes": 3, "num_discriminator_steps": 2})
    of_both = {
        "pixels": np.ones((2, 3, 4, 4, 3), "f4"),
        "generator_latents": np.ones((2, 60, 5), "f4"),
        "generator_labels": np.ones((2, 60), "i4"),
    }
    export.arrays.update({f"draws/{name}": of for name, of in of_both.items()})

    def drawn(process, seed):
        made = Share(export, process, 2, seed).draws()
        return [next(made) for _ in range(5)]

    found = drawn(1, 0)
    for step, of in enumerate(found):
        assert ([*of_both] if step % 2 == 0 else ["pixels"]) == [*of]
        for name, values in of.items():
            first = of_both[name][0]
            assert (first.shape, first.dtype) == (values.shape, values.dtype)
            assert (step < 3) == np.array_equal(first, values)
    assert {0, 1, 2} == {*found[4]["generator_labels"].tolist()}
    assert 0 <= found[3]["pixels"].min() < found[3]["pixels"].max() <= 2 / 255
    latents = found[4]["generator_latents"]
    assert 0.8 < latents.std() < 1.2  # 300 numbers: within 5 of their errors
    again, *others = (
        drawn(*of)[4]["generator_latents"] for of in ((1, 0), (1, 1), (0, 0))
    )
    np.testing.assert_array_equal(again, latents)
    assert not any(np.array_equal(other, latents) for other in others)


def test_the_learning_rates_are_ours():
    for decay_start in (0.0, 0.5, 1.0):
        ours = LinearDecay(learning_rate=3.0, num_steps=20, decay_start=decay_start)
        export = make_export(config={"decay_start": decay_start, "num_steps": 20})
        for step in (0, 7, 10, 15, 19, 20, 25):
            found = 3.0 * export.linear_decay(step)
            assert float(ours(tf.constant(step))) == pytest.approx(found, rel=1e-6)
    config = dataclasses.asdict(WORKLOADS["resnet50"].make_config("laptop", {}))
    for num_replicas in (1, 64):
        sizes = {"per_replica_batch_size": 8, "num_train_examples": 1_437}
        export = make_export(config=config, num_replicas=num_replicas, **sizes)
        names = ("learning_rate_per_256", "lr_warmup_epochs", "num_epochs")
        ours = GoyalSchedule(
            global_batch_size=8 * num_replicas,
            num_train_examples=1_437,
            **{name: config[name] for name in names},
        )
        for step in (0, 1, 5, 13, 40, 600, 1_100, 1_500):
            found = export.goyal_rate(step)
            assert float(ours(tf.constant(step))) == pytest.approx(found, rel=1e-5)


def test_later_batches_are_of_the_shard_and_shuffled():
    export = make_export()

    def labels(process, seed):
        made = Share(export, process, 2, seed).batches()
        taken = [next(made) for _ in range(8)]
        assert {(3, 12, 12, 3)} == {image.shape for image, _ in taken}
        return np.concatenate([label for _, label in taken[3:]])

    assert [*range(5, 10)] == sorted(labels(1, 0)[:5])
    assert [*range(5, 10)] == sorted(labels(1, 0)[5:10])
    assert labels(0, 1).tolist() == labels(0, 1).tolist()
    assert labels(0, 1).tolist() != labels(0, 2).tolist()
    # The control repeats the first batch, as ours does.
    again = Share(export, 0, 2, is_repeated=True).batches()
    for image, _ in itertools.islice(again, 5):
        np.testing.assert_array_equal(export.arrays["batches/image"][0, 0], image)


# Levels per pixel down and to the right, in two channels: they show where a crop is.
SLOPE = 36


def own_images(augmentation, num_images, image_size):
    """What is made of images: with their crops, what is stored, and the result."""
    rng = np.random.default_rng(1)
    stored = rng.integers(0, 256, (5, 8, 8, 3)).astype("u1")
    stored[..., 0] = SLOPE * np.arange(8)[:, None]
    stored[..., 1] = SLOPE * np.arange(8)
    export = make_export(
        config={"image_size": image_size}, augmentation=dataclasses.asdict(augmentation)
    )
    export.arrays.update(
        {
            "batches/image": np.zeros((3, 1, num_images, 1), "f4"),
            "batches/label": np.zeros((3, 1, num_images), "i4"),
            "data/image": stored,
            "data/label": np.arange(5, dtype="i4"),
        }
    )
    images, labels = next(itertools.islice(Share(export, 0, 1).batches(), 3, None))
    pixels = 255.0 * (images * augmentation.stddev + augmentation.mean)
    corners = pixels[:, [0, -1], [0, -1], :2] / (SLOPE * 7)
    return corners.reshape(-1, 4), stored[labels], images


def test_crops_are_those_of_tensorflow():
    for augmentation in (DIGITS, UNCHANGED):
        boxes, stored, found = own_images(augmentation, 5, 20)
        boxes = boxes.clip(0.0, 1.0)  # of what is read from pixels, rounding
        cropped = tf.image.crop_and_resize(stored, boxes, range(5), [20, 20])
        ours = (cropped / 255.0 - augmentation.mean) / augmentation.stddev

        np.testing.assert_allclose(ours, found, rtol=ROUNDING, atol=1e-4)
    boxes, *_ = own_images(DIGITS, 2_000, 2)
    height, width = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert -1e-6 <= boxes.min() <= boxes.max() <= 1 + 1e-6
    assert 0.69 <= (height * width).min()
    assert 0.89 <= (width / height).min() <= (width / height).max() <= 1.11


def test_the_paths_of_variables_are_those_of_attributes():
    training = build_whole("sngan").training
    found, model = training.weights(), training.generator

    assert len(found) == len([*model.variables, *training.discriminator.variables])
    assert {
        "generator.dense.kernel",
        "generator.blocks.0.norm_1.gamma",
        "generator.blocks.0.norm_1.norm.moving_mean",
        "generator.blocks.1.shortcut.bias",
        "generator.last_norm.beta",
    } <= found.keys()
    kernel = model.dense.kernel.numpy()
    np.testing.assert_array_equal(kernel, found["generator.dense.kernel"])


# Programs of peers, and what is said of what they do not implement.
LACKS = """
jax --data=synthetic ->
jax --data=cifar10 -> data 'cifar10', but reads digits and synthetic only
torch_ddp --option=compute_dtype=mixed_bfloat16 ->
jax --option=compute_dtype=mixed_bfloat16 -> option compute_dtype='mixed_bfloat16', but\
 implements 'float32' only
torch_ddp --option=compute_dtype=mixed_float16 -> option compute_dtype='mixed_float16',\
 but implements 'float32' and 'mixed_bfloat16' only
jax --workload=d4pg -> workload d4pg, but has resnet50 and sngan only
jax --device=gpu -> device 'gpu', but runs on CPUs only
jax --set=steps-per-sync=4 -> --set steps-per-sync=4, but reads each loss
"""


FEATURES = """{"featuresDict": {"features": {
 "image": {"pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
           "image": {"dtype": "uint8", "shape": {"dimensions": ["32", "32", "3"]}}},
 "label": {"pythonClassName": "tensorflow_datasets.core.features.ClassLabel"}
}}}"""


@pytest.mark.parametrize("row", LACKS.strip().splitlines())
def test_what_a_peer_lacks_is_refused(row, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    prepared = tmp_path / "cifar10" / "3.0.2"
    prepared.mkdir(parents=True)
    for name in ("features", "dataset_info"):
        (prepared / f"{name}.json").write_text(FEATURES)
    given, _, message = row.partition(" ->")
    peer, *options = given.split()
    words = ("sweep", "--dry-run", "--preset=laptop", "--replicas=1,2", "--mode=weak")
    words = (*words, "--workload=resnet50", f"--backends=in_graph,{peer}")
    code = main(overridden(words, *options))
    said = (
        f"error: backend {peer!r} does not have{message}; leave it out of --backends\n"
    )

    assert (ExitCode.USAGE if message else ExitCode.OK) == code
    assert bool(message) == (said == capsys.readouterr().err)


def trial(backend="jax", revision=""):
    return SimpleNamespace(spec=SimpleNamespace(backend=backend, revision=revision))


@pytest.mark.parametrize(
    ("launcher", "revision", "stamp", "message"),
    [
        ("slurm", "", None, "does not start by --launcher slurm, but by local only"),
        ("local", "old", None, "is no code of a revision"),
        ("local", "", None, "which is not there; run 'make setup-peers'"),
        ("local", "", "abc", "which is of another lock; run 'make setup-peers'"),
    ],
)
def test_a_peer_that_cannot_start_is_refused(
    tmp_path, launcher, revision, stamp, message
):
    lock = tmp_path / "workloads" / "peers" / "jax" / "requirements.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("jax==0\n")
    installed = tmp_path / "build" / "peers" / "jax" / ".installed"
    installed.parent.mkdir(parents=True)
    if stamp is not None:
        installed.write_text(stamp)
    planned = [trial("in_graph", "old"), trial("jax", revision)]
    with pytest.raises(PlanError, match=re.escape(message)):
        peers.check_environments(planned, launcher, "local", tmp_path)

    installed.write_text("aeee6ccab480baed0fde")  # the digest of that lock
    peers.check_environments([trial()], "local", "local", tmp_path)


TWO = [2.0, 1.0]
# Of PyTorch in bfloat16, right and with errors planted in one step; and ours: as they
# were measured of ResNet-50, preset ``laptop``, with one replica of 8 examples.
RIGHT, OURS = [6.9694, 5.6718, 8.1705], [6.969283, 5.675794, 8.130244, 1.0]
SLOW, HEAVY = [6.9694, 5.8435, 7.9880], [6.9694, 5.6718, 7.3193]
SAME = "first losses, from the weights and batches of"
THE_SAME = "from the same weights and batches"


@pytest.mark.parametrize(
    ("dtype", "ours", "found", "message"),
    [
        ("float32", TWO, [2.0, 1.0 + 5e-4], f"2 {SAME}"),
        ("float32", TWO, [2.0, 1.01], f"the loss of step 1 is 1.01; {THE_SAME}"),
        ("float32", TWO, [2.0, float("nan")], "the loss of step 1 is nan"),
        ("float32", TWO, [2.0], "step 1 has no loss"),
        ("float32", TWO, [None, 1.0], "step 0 has no loss"),
        ("mixed_bfloat16", OURS, RIGHT, f"3 {SAME}"),
        # 0.8 of its rate, and momentum 0.5.
        ("mixed_bfloat16", OURS, SLOW, "the loss of step 1 is 5.8435"),
        ("mixed_bfloat16", OURS, HEAVY, "the loss of step 2 is 7.3193"),
        *(("float32", OURS, of, "the loss of step ") for of in (RIGHT, SLOW, HEAVY)),
    ],
)
def test_first_losses_agree_or_the_step_that_does_not_is_named(
    monkeypatch, tmp_path, dtype, ours, found, message
):
    spec = SimpleNamespace(num_warmup_steps=3, control=Control.NONE, num_replicas=1)
    exported = {"losses": ours, "config": {"compute_dtype": dtype}}
    (tmp_path / "settings.json").write_text(json.dumps(exported))
    monkeypatch.setenv("REPLICATOR_HARNESS_EXPORT", str(tmp_path))
    path = rank_path(tmp_path, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    times = {"kind": "step", "phase": "warmup", "start_ns": 0, "end_ns": 1}
    lines = [{**times, "index": step, "loss": of} for step, of in enumerate(found)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    peers.check_losses(tmp_path, spec)

    (check,) = lines_of(path, "sanity")
    assert check["detail"].startswith(message)
    assert check["is_passed"] == (SAME in message)


# In their own environments, which `make test-peers` makes.
@pytest.mark.processes
@pytest.mark.skipif(
    not os.environ.get("REQUIRE_PEERS"),
    reason="other frameworks are in environments of their own: make test-peers",
)
@pytest.mark.parametrize(
    ("workload", "data", "minutes", "dtype", "own"),
    [
        ("resnet50", "synthetic", "3", "float32", {"jax", "torch_ddp"}),
        ("resnet50", "digits", "1", "mixed_bfloat16", {"torch_ddp"}),
        ("sngan", "digits", "1", "float32", {"jax", "torch_ddp"}),
    ],
)
def test_peers_repeat_our_first_losses_and_are_measured(
    tmp_path, workload, data, minutes, dtype, own
):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "sweep", "--workload", workload),
            *("--preset", "smoke", "--data", data, "--replicas", "2"),
            *("--mode", "weak", "--backends", ",".join(["in_graph", *sorted(own)])),
            *("--repeats", "2", "--time-budget", f"{minutes}min", "--no-match"),
            *("--option", f"compute_dtype={dtype}"),
            *("--study", "peers", "--runs-dir", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode in (0, ExitCode.UNFIT), (
        done.stdout[-2000:] + done.stderr[-2000:]
    )
    found = {}
    for path in tmp_path.glob("peers/trials/*/result.json"):
        result = json.loads(path.read_text())
        spec = json.loads(path.with_name("spec.json").read_text())
        checks = {check["name"]: check for check in result["sanity"]}
        if spec["backend"] in own:
            own_check = checks["first_losses_agree"]
            found.setdefault(spec["backend"], []).append(own_check["is_passed"])
        assert result["blocks"]
    assert {name: [True] * len(seen) for name, seen in found.items()} == found
    assert own == set(found)

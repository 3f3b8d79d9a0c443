"""What a peer cannot do is refused by name, before anything starts or is timed."""

import json
import re
from types import SimpleNamespace

import pytest

from harness import catalog
from harness.command import first_losses, peers
from harness.errors import PlanError
from harness.trial.rank_file import rank_path, read_rank
from results.records.models import Control


def trial(backend="jax", revision=""):
    return SimpleNamespace(spec=SimpleNamespace(backend=backend, revision=revision))


@pytest.mark.parametrize(
    ("workload", "fields", "message"),
    [
        (
            "d4pg",
            {},
            "'jax' does not have workload d4pg, but has resnet50 and sngan only",
        ),
        ("resnet50", {"data": "cifar10"}, "'jax' does not have data 'cifar10'"),
        ("resnet50", {"device": "gpu"}, "'jax' does not have device 'gpu'"),
        ("resnet50", {"steps_per_sync": 4}, "--steps-per-sync 4, but reads each loss"),
    ],
)
def test_what_a_peer_lacks_is_refused(workload, fields, message):
    """With what it has, and what to do."""
    given = {
        "preset": "laptop",
        "options": {},
        "data": "digits",
        "device": "cpu",
        "steps_per_sync": None,
    }
    with pytest.raises(PlanError, match=re.escape(message)) as caught:
        peers.check(
            catalog.workload(workload),
            [catalog.backend("in_graph"), catalog.backend("jax")],
            **{**given, **fields},
        )
    assert str(caught.value).endswith("leave it out of --backends")


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
    """Its environment is made of its lock as it is now."""
    peer = catalog.PEERS["jax"]
    lock = tmp_path / peer.lock
    lock.parent.mkdir(parents=True)
    lock.write_text("jax==0\n")
    folder = peers.environment_of(tmp_path, peer)
    folder.mkdir(parents=True)
    if stamp is not None:
        (folder / peers.STAMP).write_text(stamp)
    planned = [trial("in_graph", "old"), trial("jax", revision)]
    with pytest.raises(PlanError, match=re.escape(message)):
        peers.check_environments(planned, launcher, "local", tmp_path)

    (folder / peers.STAMP).write_text(peers.lock_digest(tmp_path, peer))
    peers.check_environments([trial()], "local", "local", tmp_path)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([2.0, 1.0], ""),
        ([2.0, 1.0 + 5e-4], ""),
        ([2.0, 1.01], "the loss of step 1 is 1.01; from the same weights and batches"),
        ([2.0, float("nan")], "the loss of step 1 is nan"),
        ([2.0], "step 1 has no loss"),
        ([None, 1.0], "step 0 has no loss"),
    ],
)
def test_first_losses_agree_or_the_step_that_does_not_is_named(found, message):
    """At most 1e-3 apart, relative."""
    tolerance = first_losses.TOLERANCES["float32"]
    reason = first_losses.disagreement(found, [2.0, 1.0], "in_graph x2", tolerance)
    assert bool(message) == bool(reason)
    assert reason.startswith(message)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([6.9694, 5.6718, 8.1705], "3 first losses, from the weights and batches of"),
        ([6.9694, 5.8435, 7.9880], "the loss of step 1 is 5.8435"),  # 0.8 of its rate
        ([6.9694, 5.6718, 6.2660], "the loss of step 2 is 6.266"),  # half of its rate
        (
            [6.9694, 5.6718, 7.3193],
            "the loss of step 2 is 7.3193",
        ),  # momentum 0.5 for 0.9
    ],
)
@pytest.mark.parametrize("dtype", first_losses.TOLERANCES)
def test_the_check_of_16_bits_finds_a_wrong_step(tmp_path, found, message, dtype):
    """Losses of PyTorch in bfloat16, right and with errors planted in one step.

    Those of ResNet-50, preset ``laptop``, with one replica of 8 examples, as they were
    measured; the second are ours. None of them is right in float32.
    """
    spec = SimpleNamespace(num_warmup_steps=3, control=Control.NONE)
    ours = [6.969283, 5.675794, 8.130244]
    first_losses.write(tmp_path, spec, ours, "in_graph x1", dtype)
    path = rank_path(tmp_path, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    times = {"kind": "step", "phase": "warmup", "start_ns": 0, "end_ns": 1}
    lines = [{**times, "index": step, "loss": of} for step, of in enumerate(found)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first_losses.check(tmp_path)

    (check,) = read_rank(tmp_path, 0).sanity
    is_right = message.startswith("3 first") and dtype == "mixed_bfloat16"
    assert is_right == check["is_passed"]
    assert check["detail"].startswith(message) or dtype == "float32"

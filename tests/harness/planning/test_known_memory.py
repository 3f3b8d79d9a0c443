"""A batch that ran out of memory before is not started again by mistake."""

import re

import pytest
from command_words import overridden
from fake_nvml import make_gpus

from harness.cli import exit_codes

pytestmark = pytest.mark.usefixtures("forked_trials")

SWEEP = (
    "sweep",
    "--workload=resnet50",
    "--preset=smoke",
    "--device=gpu",
    "--backends=in_graph",
    "--mode=weak",
    "--repeats=1",
    "--order=sequential",
    "--budget=none",
    "--no-match",
)


@pytest.fixture
def sweep(harness, gpu_overrides, install_gpus, monkeypatch):
    """Returns a function that sweeps with a batch, which fits or does not."""

    def run(size, study, *options, behavior="", **fields):
        install_gpus(make_gpus(2, **fields))
        monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
        own = (f"--per-replica-batch-size={size}", f"--study={study}", "--replicas=1")
        words = (*SWEEP, *overridden(own, *options))
        return harness(*words, overrides=gpu_overrides)

    return run


def test_what_did_not_fit_is_refused_with_what_does(sweep, written):
    """The message names the study, and the largest batch that fitted."""
    assert exit_codes.OK == sweep(4, "small")[0]
    assert exit_codes.NOTHING_MEASURED == sweep(64, "big", behavior="*:*:oom")[0]
    before = written()
    code, out, err = sweep(128, "bigger")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: 1 x 128 examples do not fit with backend 'in_graph': 1 x 64 ran out of"
        r" memory on NVIDIA H100 80GB HBM3 in study 'big'; 4 fits: use"
        r" --per-replica-batch-size 4, or --retry failed to try it again\n",
        err,
    )
    assert before == written()


def test_without_one_that_fitted_it_is_an_upper_limit(sweep):
    """Nothing is claimed about smaller ones."""
    sweep(64, "big", behavior="*:*:oom")
    _, _, err = sweep(64, "again")

    assert "; use less than --per-replica-batch-size 64, or --retry failed" in err


def test_what_may_fit_is_run(sweep):
    """Smaller batches, other models, the study itself, and a second try."""
    sweep(64, "big", behavior="*:*:oom")

    assert exit_codes.OK == sweep(32, "smaller")[0]
    assert exit_codes.OK == sweep(64, "other", name="NVIDIA H200")[0]
    assert exit_codes.OK == sweep(64, "third", "--retry=failed")[0]
    assert exit_codes.NOTHING_MEASURED == sweep(64, "big")[0]


def test_memory_that_two_gpus_lack_says_nothing_of_one(sweep):
    """Collectives need buffers: only as many GPUs or more are refused."""
    sweep(64, "big", "--replicas=1,2", behavior="*:2:oom")
    _, _, err = sweep(64, "again", "--replicas=1,2")

    assert err.startswith("error: 2 x 64 examples do not fit")

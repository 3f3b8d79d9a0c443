"""The page says which GPUs measured a study, and what they did meanwhile."""

import re

import pytest

from reports.page.sections import machine
from reports.view.view import view_store
from results.records.machines.gpu_record import GpuUse


@pytest.fixture
def show(tmp_path, synthetic):
    def run(make_uses):
        store = synthetic.make_store(tmp_path / "s")
        for number, trial in enumerate(store.trials()):
            uses = make_uses(number, trial.spec.num_replicas)
            fields = {"gpus": ("H100",) * trial.spec.num_replicas, "gpu_uses": uses}
            store.write_env(trial.trial_id, trial.env.model_copy(update=fields))
        return str(machine.render(view_store(store)))

    return run


def _uses(count, **fields):
    return tuple(GpuUse(index=i, num_samples=5, **fields) for i in range(count))


def test_the_page_has_clocks_power_and_why_a_clock_was_low(show):
    """Over all trials; accelerators are those of the largest one."""
    sizes = []

    def make_uses(number, count):
        sizes.append(count)
        return _uses(
            1,
            clock_mhz=1980.0 - number,
            power_watts=600.0 + number,
            temperature_celsius=60.0,
            slowed_by=("power limit",) if number == 1 else (),
        )

    page = show(make_uses)
    last = len(sizes) - 1

    assert f"<dd>{', '.join(['H100'] * max(sizes))}; while trials were measured" in page
    assert f"{1980 - last:,} to 1,980 MHz, 600 to {600 + last} W" in page
    assert "at most 60 degrees Celsius, clock lowered by power limit" in page


def test_the_page_says_which_gpu_was_slow_before_the_windows(show):
    """Against the median of its trial; trials without a rate are counted."""

    def make_uses(number, count):
        uses = _uses(count, product_tflops=None if number == 0 else 600.0)
        if number == 1 or count == 1:
            return uses
        return (*uses[:-1], uses[-1].model_copy(update={"product_tflops": 300.0}))

    page = show(make_uses)

    assert "<dt>Matrix product on a GPU</dt><dd>300 to 600 TFLOP/s in bfloat16" in page
    assert re.search(r"the slowest GPU within a trial was GPU \d+, with 0\.[56]", page)
    assert "of the median: every synchronous step waited for it" in page
    assert "not recorded in 1 trial<" in page


def test_the_page_has_the_energy_of_an_example(show):
    """By the number of GPUs, since all of them count."""
    page = show(lambda _, n: _uses(n, energy_joules=600.0, watched_sec=2.0))

    assert re.search(r"<dt>Energy</dt><dd>[\d.]+(?: to [\d.]+)? J with 1\WGPU; ", page)
    assert ", per image on all GPUs of a trial</dd>" in page


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (0, r": the driver listed no other process in \d+\Wtrials"),
        (None, r": not confirmed in \d+ of \d+\Wtrials: the driver does not list"),
        (2, r": other processes used the GPUs of \d+ of \d+\Wtrials, which are void"),
    ],
)
def test_the_page_says_whether_exclusive_use_was_confirmed(show, foreign, expected):
    """It is checked, and not only planned."""
    page = show(lambda _, n: _uses(n, num_foreign_processes=foreign))

    assert re.search(expected, page)


def test_without_gpus_the_page_says_none(tmp_path, synthetic):
    page = str(machine.render(view_store(synthetic.make_store(tmp_path / "s"))))

    assert "<dt>Accelerators</dt><dd>none</dd>" in page

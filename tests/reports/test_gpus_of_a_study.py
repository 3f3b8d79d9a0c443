"""The page says which GPUs measured a study, and what they did meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reports.sections import machine
from reports.view import view_store
from results.gpu_record import GpuUse

if TYPE_CHECKING:
    import pathlib


def test_the_page_has_clocks_power_and_why_a_clock_was_low(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """Over all trials; accelerators are those of the largest one."""
    store = synthetic.make_store(tmp_path / "s")
    trials = list(store.trials())
    for number, trial in enumerate(trials):
        use = GpuUse(
            index=0,
            num_samples=5,
            clock_mhz=1980.0 - number,
            power_watts=600.0 + number,
            temperature_celsius=60.0,
            slowed_by=("power limit",) if number == 1 else (),
        )
        fields = {"gpus": ("H100",) * trial.spec.num_replicas, "gpu_uses": (use,)}
        store.write_env(trial.trial_id, trial.env.model_copy(update=fields))
    page = str(machine.render(view_store(store)))
    num_trials = len(trials)
    largest = max(trial.spec.num_replicas for trial in trials)

    assert f"<dd>{', '.join(['H100'] * largest)}; while trials were measured" in page
    assert f"{1981 - num_trials:,} to 1,980 MHz, 600 to {599 + num_trials} W" in page
    assert "at most 60 degrees Celsius, clock lowered by power limit" in page


def test_without_gpus_the_page_says_none(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """As for most studies."""
    page = str(machine.render(view_store(synthetic.make_store(tmp_path / "s"))))

    assert "<dt>Accelerators</dt><dd>none</dd>" in page

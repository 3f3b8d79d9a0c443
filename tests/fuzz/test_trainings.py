"""Random trainings on R replicas give what NumPy gives on one device."""

import dataclasses
import sys
from pathlib import Path

import covering
import numpy as np
import pytest
from fuzzing import checking, series
from fuzzing.training import checking as training_checking
from fuzzing.training import examples, numpy_model, syntax

from replicator.collectives import reductions

# `make fuzz` draws thousands.
NUM_TRAININGS = 40 if covering.is_full() else 4
SEED = 2019


def _training(**changes):
    defaults = {
        "layers": (),
        "optimizer": syntax.Optimizer(name="sgd"),
        "inputs": syntax.Inputs(
            num_examples=7,
            batch=7,
            is_split=True,
            is_generator=False,
            mode="PER_WORKER",
            prefetch=0,
        ),
        "target": syntax.Target(num_replicas=2, is_mirrored=False),
        "actions": (syntax.Run(),),
        "poison": None,
        "dtype": "float64",
        "seed": 0,
    }
    return syntax.Training(**(defaults | changes))


def test_random_trainings_agree(capsys):
    """Models, optimizers, epochs, writes and failures, against NumPy."""
    found = series.run_series(SEED, NUM_TRAININGS, grammar=series.TRAININGS)

    with capsys.disabled():
        sys.stdout.write(f"\n{found}\n")
    assert not found.differences, "\n".join(found.differences)
    num_judged = NUM_TRAININGS - found.verdicts[checking.Verdict.NOT_JUDGED]
    assert NUM_TRAININGS // 2 < num_judged
    assert NUM_TRAININGS == found.verdicts.total()


def test_after_a_smaller_last_step_other_batches_begin_the_next_epoch():
    """Of 10 examples, 3 steps of 4 have read all, which are no whole steps of 3."""
    inputs = dataclasses.replace(_training().inputs, num_examples=10, batch=4)
    target = syntax.Target(num_replicas=3, is_mirrored=False)
    actions = (
        syntax.Run(num_steps=3),
        syntax.Restore(target=target, batch=3),
        *[syntax.Run()] * 3,
    )

    same = training_checking.check(_training(inputs=inputs, actions=actions))

    assert checking.Verdict.SAME is same


def test_what_rounding_alone_decides_is_not_judged():
    """Of one example, batch norm has a gradient of zero, whose rounding Adam scales."""
    training = _training(
        layers=(syntax.Norm(),),
        optimizer=syntax.Optimizer(name="adam"),
        inputs=dataclasses.replace(_training().inputs, num_examples=4, batch=1),
        target=syntax.Target(num_replicas=1, is_mirrored=False),
        actions=(syntax.Run(),) * 3,
        dtype="float32",
        seed=1,
    )

    assert checking.Verdict.NOT_JUDGED is training_checking.check(training)


def test_a_fault_in_a_training_is_found(monkeypatch):
    """Gradients of one replica alone: the first training shows it."""
    monkeypatch.setattr(reductions, "all_reduce", lambda values, *_, **__: values)

    found = series.run_series(
        SEED, NUM_TRAININGS, grammar=series.TRAININGS, is_shrunk=False, features=()
    )

    assert 1 == len(found.differences)


@pytest.mark.parametrize("is_global", [True, False])
def test_gradients_in_numpy_are_those_of_finite_differences(is_global):
    """Of a model with both kinds of layer, on uneven parts."""
    layers = (
        syntax.Norm(is_global=is_global),
        syntax.Dense(units=2, activation="sigmoid"),
    )
    training = _training(layers=layers)
    x, t = examples.make_data(training)
    parts = [(x[:4], t[:4]), (x[4:], t[4:])]

    def loss_at(index, place, change):
        model = numpy_model.Model(training, np.random.default_rng(0))
        model.trained()[index].flat[place] += change
        return model.step(parts)

    model = numpy_model.Model(training, np.random.default_rng(0))
    before = [w.copy() for w in model.trained()]
    model.step(parts)

    for index, (old, new) in enumerate(zip(before, model.trained(), strict=True)):
        for place in range(old.size):
            rise = loss_at(index, place, 1e-5) - loss_at(index, place, -1e-5)
            update = (old - new).flat[place] / numpy_model.RATE
            assert rise / 2e-5 == pytest.approx(update, abs=1e-6)


def test_numpy_does_not_use_the_library():
    """Otherwise both could be wrong in the same way."""
    for module in (examples, numpy_model, syntax):
        lines = Path(module.__file__).read_text(encoding="utf-8").splitlines()
        used = [line for line in lines if "import" in line]
        assert not [line for line in used if "replicator" in line or "keras" in line]

"""Loops of frameworks take part by a callback; each with its library, if it is here."""

import importlib
import os

import pytest
from command_lines import run_module


def library(name):
    """Returns a library; skips a test without it, except in ``make test-peers``."""
    if os.environ.get("REQUIRE_PEERS"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason="it is not installed here: make test-peers")


@pytest.fixture(scope="module")
def callbacks(tmp_path_factory):
    """The file of the callbacks, imported from where a user has put it."""
    folder = tmp_path_factory.mktemp("beside-a-program")
    assert 0 == run_module("harness.client", str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        import scaling_callbacks

        return scaling_callbacks


class FakeStep:
    def __init__(self, run, index):
        self.run, self.index = run, index

    def done(self, *, loss=None, examples=None):
        self.run.ended.append((None if loss is None else float(loss), examples))


class FakeRun:
    is_study = True

    def __init__(self, num_steps):
        self.num_left, self.ended = num_steps, []

    def next_step(self):
        self.num_left -= 1
        return FakeStep(self, len(self.ended)) if self.num_left >= 0 else None

    def steps(self, _num_steps=None):
        while (step := self.next_step()) is not None:
            yield step


@pytest.mark.parametrize("is_study", [True, False])
def test_fit_of_keras_takes_part(callbacks, is_study):
    import keras
    import numpy as np

    run = FakeRun(5)
    run.is_study = is_study
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = callbacks.keras_callback(run, 4)
    history = model.fit(
        np.ones((16, 3)), np.ones((16, 1)), 4, epochs=3, verbose=0, callbacks=[callback]
    )

    assert 5 == len(run.ended)
    assert {4} == {examples for _, examples in run.ended}
    assert all(loss > 0 for loss, _ in run.ended)
    assert (2 if is_study else 3) == len(history.epoch)


def test_a_loop_of_jax_waits_for_its_arrays(callbacks):
    jax = library("jax")
    run = FakeRun(4)
    square = jax.jit(lambda x: (x * x).sum())
    for step in callbacks.jax_steps(run):
        loss = square(jax.numpy.ones(8))
        step.done(loss, loss=loss, examples=8)

    assert [(8.0, 8)] * 4 == run.ended


def test_a_trainer_of_lightning_takes_part(callbacks):
    torch, lightning = library("torch"), library("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, _index):
            return (self.layer(batch[0]) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    run = FakeRun(5)
    data = torch.utils.data.TensorDataset(torch.ones(16, 3))
    trainer = lightning.Trainer(
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=[callbacks.lightning_callback(run, 4)],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, 4))

    assert 5 == len(run.ended)
    assert all(loss > 0 for loss, _ in run.ended)


def test_a_trainer_of_hugging_face_takes_part(callbacks, tmp_path):
    torch, transformers = library("torch"), library("transformers")
    library("accelerate")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, inputs):
            return {"loss": (self.layer(inputs) ** 2).mean()}

    run = FakeRun(5)
    trainer = transformers.Trainer(
        Model(),
        transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_train_epochs=3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        ),
        train_dataset=[{"inputs": torch.ones(3)} for _ in range(16)],
        callbacks=[callbacks.trainer_callback(run, 4)],
    )
    trainer.train()

    assert [(None, 4)] * 5 == run.ended

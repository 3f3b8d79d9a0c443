"""The measuring control that reads batches and runs no step."""

import pytest
from small_programs import build as build_small

import replicator
from workloads.input_only import InputOnlyProgram

# cartpole has a small body; images are the embedded digits.
DATA = {
    "resnet50": "digits",
    "sngan": "digits",
    "d4pg": "cartpole:swingup",
    "transformer": "tensorflow_source",
}


def build(name, data=None, backend="in_graph", num_replicas=2):
    repl = replicator.create(backend, num_replicas=num_replicas)
    return build_small(name, repl, data=data or DATA[name])


@pytest.mark.parametrize("name", DATA)
def test_batches_are_read_and_nothing_is_trained(name):
    """As many as steps would read; variables stay as they were."""
    program = build(name)
    control = InputOnlyProgram(program)
    before = {key: value.numpy() for key, value in _variables(program).items()}
    control.start_window()
    losses = [control.run(), control.run(3)]
    control.pause()
    after = {key: value.numpy() for key, value in _variables(program).items()}

    assert [0.0, 0.0] == losses
    assert 4 == program._inputs.num_steps
    assert before
    assert all((before[key] == after[key]).all() for key in before)
    if name == "d4pg":
        program.close()


def _variables(program):
    """Those of the networks, by name."""
    found = {}
    for name, trackable in program._trackables().items():
        for variable in getattr(trackable, "trainable_variables", ()):
            found[f"{name}/{variable.path}"] = variable
    return found


def test_its_record_says_that_nothing_was_checked():
    """It is no trial of the case."""
    control = InputOnlyProgram(build("resnet50"))
    (check,) = control.sanity()

    assert check.is_passed
    assert "not checked: this control reads batches and runs no step" == check.detail
    assert () == control.evaluate() == control.losses_of_replicas()
    assert 8 == control.global_batch_size


def test_one_replica_reads_too():
    """A step without variables runs on its backend as well."""
    program = build("sngan", "synthetic", backend="single", num_replicas=1)

    assert 0.0 == InputOnlyProgram(program).run(2)

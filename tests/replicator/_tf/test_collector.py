"""The garbage collector while a step is traced."""

import gc

import pytest

import replicator


@pytest.fixture(params=[True, False], ids=["on", "off"])
def is_on(request):
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_paused_while_a_step_is_traced(is_on, fails):
    """And afterwards as it was, also where the step is refused."""
    repl = replicator.create("in_graph", num_replicas=2)
    found = []

    def step():
        found.append(gc.isenabled())
        if fails:
            raise RuntimeError("of the step")
        return 1.0

    if fails:
        with pytest.raises(RuntimeError, match="of the step"):
            repl.run(step)
    else:
        repl.run(step)

    assert [False] == found
    assert is_on == gc.isenabled()

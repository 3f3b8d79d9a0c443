"""What several backends of worker processes are compared with."""

import numpy as np
import pytest
import uneven_epoch

import replicator


@pytest.fixture
def check_epoch():
    def check(results):
        expected = uneven_epoch.run(replicator.create("single"))
        for result in results:
            np.testing.assert_allclose(expected["losses"], result["losses"], rtol=1e-5)
            for want, value in zip(expected["weights"], result["weights"], strict=True):
                np.testing.assert_allclose(want, value, rtol=1e-4, atol=1e-6)
            assert uneven_epoch.LARGEST == result["mean"]
        examples = [example for result in results for example in result["examples"]]
        assert sorted(expected["examples"]) == sorted(examples)
        # Four replicas and another global batch take over: each example once.
        repl = replicator.create("in_graph", num_replicas=4)
        inputs = uneven_epoch.make_inputs(repl, 16)
        manager = uneven_epoch.make_manager(repl, results[0]["folder"], inputs)
        assert "skipping the 2 steps" in manager.restore().input_position
        examples += uneven_epoch.read(repl, inputs, 2)
        assert list(range(uneven_epoch.NUM_EXAMPLES)) == sorted(examples)

    return check

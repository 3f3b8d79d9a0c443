"""Published programs are equal to one device, or refused.

Each is one function of a strategy; ``published/catalog.py`` has who published it.
"""

import functools
from pathlib import Path

import case_cluster
import pytest
import tensorflow as tf
from published import catalog

import replicator

FOLDER = Path(__file__).parent
# A loss that Keras divides, one that the step takes, text, and a loop of
# ``tf.distribute`` in a function: what is done differently.
OFTEN = {
    "shared": ("custom_training", "structured_data"),
    "mirrored": (
        "distributed_input",
        "nearest_neighbour_contrast",
        "variational_autoencoder",
    ),
}
PLACED = [
    pytest.param(
        name,
        placement,
        id=f"{name}-{placement}",
        marks=[] if name in often else pytest.mark.full,
    )
    for placement, often in OFTEN.items()
    for name in catalog.PROGRAMS
]


@functools.cache
def _on_one_device(name):
    return catalog.run(name, tf.distribute.get_strategy())


@pytest.mark.parametrize(("name", "placement"), PLACED)
def test_a_published_program_is_equal_or_refused(name, placement):
    devices = {"devices": ["CPU:0", "CPU:1"]} if placement == "mirrored" else {}
    repl = replicator.create(
        "in_graph", num_replicas=2, variable_placement=placement, **devices
    )

    found = catalog.run_on(name, repl)

    catalog.check(name, _on_one_device(name), found)


@pytest.fixture(scope="module", params=["multi_worker", "multi_worker_in_graph"])
def workers(request, tmp_path_factory):
    served = {"runners": [("worker", 0)]} if "in_graph" in request.param else {}
    return case_cluster.ran(
        "published.catalog",
        tmp_path_factory.mktemp(request.param),
        path=FOLDER,
        num_workers=2,
        options={"backend": request.param},
        **served,
    )


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("name", catalog.PROGRAMS)
def test_a_published_program_on_workers_is_equal_or_refused(workers, name):
    for found in workers.values(name):
        catalog.check(name, _on_one_device(name), found)

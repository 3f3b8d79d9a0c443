"""A short and narrow ResNet, for what does not depend on the size of the network.

ResNet-50 is traced for 5 s of CPU time, its optimizer and both directions included.
This one has every kind of layer, stages without and with a stride, and a fifth of the
nodes.
"""

import contextlib

import pytest

from workloads.resnet50 import model

# The stem, three convolutions of each block and its projection.
NUM_CONVOLUTIONS = 1 + 2 * (3 + 1)


@contextlib.contextmanager
def short():
    """Makes networks that are built inside short: one block in each of two stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "NUM_BLOCKS", (1, 1))
        patch.setattr(model, "WIDTHS", (8, 16))
        yield

"""Names and facts of the workloads, readable without TensorFlow.

    python -m workloads.catalog WORKLOAD

runs steps of one on a GPU, and measures nothing: where TensorFlow has no machine code
for a GPU, the driver compiles each kernel when it is first used, and keeps it.
"""

from __future__ import annotations

import sys

from workloads.d4pg import study as d4pg
from workloads.keras_fit import study as keras_fit
from workloads.resnet50 import study as resnet50
from workloads.sngan import study as sngan
from workloads.transformer import study as transformer

WORKLOADS = {
    info.name: info
    for info in (
        resnet50.WORKLOAD,
        sngan.WORKLOAD,
        d4pg.WORKLOAD,
        keras_fit.WORKLOAD,
        transformer.WORKLOAD,
    )
}
"""By name; plugins add theirs when they are asked for."""


if __name__ == "__main__":
    WORKLOADS[sys.argv[1]].warm_up(*sys.argv[2:])

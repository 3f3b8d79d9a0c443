"""Injected failures: where their modules are found, and the devices they run on."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from replicator.core import devices

NUM_VIRTUAL_DEVICES = 4  # as tests of other folders, which may run in the same process

# Virtual devices must exist before TensorFlow runs its first op, so at collection.
devices.split_cpu(NUM_VIRTUAL_DEVICES)

"""Whole programs: where their modules are found, and the devices that they run on."""

import sys
from pathlib import Path

from replicator.core import devices

FOLDER = Path(__file__).resolve().parent
# Programs are imported here and in the processes of clusters, by the same name.
sys.path.insert(0, str(FOLDER))

NUM_VIRTUAL_DEVICES = 4

# Virtual devices must exist before TensorFlow runs its first op, so at collection.
devices.split_cpu(NUM_VIRTUAL_DEVICES)

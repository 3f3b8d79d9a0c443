"""Slurm: gangs by ``srun``, sweeps by ``sbatch``."""

from typing import Final

JOB_VARIABLE: Final = "SLURM_JOB_ID"
NODES_VARIABLE: Final = "SLURM_JOB_NUM_NODES"
PARTITION_VARIABLE: Final = "SBATCH_PARTITION"
"""Partitions of which ``sbatch`` takes one, with commas between."""

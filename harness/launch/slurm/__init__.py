"""Slurm: gangs by ``srun``, sweeps by ``sbatch``."""

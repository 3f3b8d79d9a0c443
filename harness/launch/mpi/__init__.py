"""OpenMPI: files for gangs that ``mpirun`` starts."""

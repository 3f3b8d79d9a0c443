"""The part of mpi4py that the example uses, where mpi4py is not installed."""

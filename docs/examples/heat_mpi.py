"""Heat in a rod, over MPI: explicit differences, neighbours exchange their ends.

    mpirun -n 2 python heat_mpi.py 200000

Nothing in it knows the harness: rank 0 prints how many cells all ranks update per
second, and in the end what they have sent. Needs mpi4py and NumPy.
"""

import sys

import numpy as np
from mpi4py import MPI

STEPS = 200


def main(num_cells: int) -> None:
    """Simulates a rod of so many cells per rank, hot at its left end."""
    world = MPI.COMM_WORLD
    rank, num_ranks = world.Get_rank(), world.Get_size()
    left = rank - 1 if rank else MPI.PROC_NULL
    right = rank + 1 if rank + 1 < num_ranks else MPI.PROC_NULL
    heat = np.zeros(num_cells + 2)
    if left == MPI.PROC_NULL:
        heat[0] = 1.0
    num_bytes = 0
    for _ in range(10):
        world.Barrier()
        start = MPI.Wtime()
        for _ in range(STEPS):
            world.Sendrecv(heat[1:2], dest=left, recvbuf=heat[-1:], source=right)
            world.Sendrecv(heat[-2:-1], dest=right, recvbuf=heat[:1], source=left)
            num_bytes += heat.itemsize * ((left >= 0) + (right >= 0))
            heat[1:-1] += 0.25 * (heat[:-2] - 2 * heat[1:-1] + heat[2:])
        world.Barrier()
        seconds = MPI.Wtime() - start
        if rank == 0:
            rate = STEPS * num_cells * num_ranks / seconds
            print(f"cells/s: {rate:.6g}", flush=True)
    total = world.allreduce(float(heat[1:-1].sum()))
    num_bytes = world.allreduce(float(num_bytes))
    if rank == 0:
        print(f"heat: {total:.9g}; sent {num_bytes:.0f} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]))

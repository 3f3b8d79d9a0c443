"""Calls the library of Open MPI itself: real messages, without bindings."""

import atexit
import ctypes
import sys

_LIBRARY = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
_LIBRARY.MPI_Wtime.restype = ctypes.c_double
PROC_NULL = -2


def _global(name):
    """Returns the address of one of its objects, which is a handle."""
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(_LIBRARY, name)))


_DOUBLE, _SUM = _global("ompi_mpi_double"), _global("ompi_mpi_op_sum")
_WORLD = _global("ompi_mpi_comm_world")


def _call(name, *arguments):
    code = getattr(_LIBRARY, name)(*arguments)
    if code:
        raise RuntimeError(f"{name} returns {code}")


def Wtime():
    return _LIBRARY.MPI_Wtime()


class _Communicator:
    def _number(self, name):
        found = ctypes.c_int()
        _call(name, _WORLD, ctypes.byref(found))
        return found.value

    def Get_rank(self):
        return self._number("MPI_Comm_rank")

    def Get_size(self):
        return self._number("MPI_Comm_size")

    def Barrier(self):
        _call("MPI_Barrier", _WORLD)

    def Sendrecv(self, sendbuf, dest, recvbuf, source):
        sent, received = (
            buffer.ctypes.data_as(ctypes.c_void_p) for buffer in (sendbuf, recvbuf)
        )
        _call(
            "MPI_Sendrecv",
            *(sent, sendbuf.size, _DOUBLE, dest, 0),
            *(received, recvbuf.size, _DOUBLE, source, 0),
            *(_WORLD, None),
        )

    def allreduce(self, value):
        own, total = ctypes.c_double(value), ctypes.c_double()
        pointers = ctypes.byref(own), ctypes.byref(total)
        _call("MPI_Allreduce", *pointers, 1, _DOUBLE, _SUM, _WORLD)
        return total.value


_call("MPI_Init", None, None)
atexit.register(_LIBRARY.MPI_Finalize)
COMM_WORLD = _Communicator()
MPI = sys.modules[__name__]  # as programs import it from this package

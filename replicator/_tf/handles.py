"""Private names of TensorFlow's variables: who takes the handle of one.

Every write of a variable begins with its handle. Methods that Python calls eagerly read
and write by it themselves, and ``writes`` tells of the latter. So the handle of a
variable that nobody else has taken is a promise that nothing else writes it: a raw op,
a graph, and a random generator take it from the property that is watched here.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import backprop, tape
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import embedding_ops, resource_variable_ops

from replicator._tf import compat, writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

# What looks at the handle, or reads what is behind it, by file.
_READERS = {
    resource_variable_ops.__file__: frozenset(
        {
            "_export_to_saved_model_graph",
            "_read_variable_op",
            "copy_to_graph_uninitialized",
            "device",
            "gather_nd",
            "graph",
            "is_initialized",
            "read_and_set_handle",
            "sparse_read",
        }
    ),
    embedding_ops.__file__: frozenset({"_colocate_with"}),
}
# Of Keras, which is not imported here: it asks whether there is a handle.
_KERAS = PurePath("keras/src/backend/tensorflow/optimizer.py")
# They compare handles.
_COMPARING = frozenset(of.__file__ for of in (backprop, func_graph, tape))
_OPS = PurePath(resource_variable_ops.__file__).parent


class _Own(threading.local):
    depth = 0
    graphs: tuple[Any, ...] = ()


_OWN = _Own()


@contextlib.contextmanager
def own() -> Iterator[None]:
    """Takes handles, and writes variables, without telling of it."""
    _OWN.depth += 1
    try:
        yield
    finally:
        _OWN.depth -= 1


@contextlib.contextmanager
def own_graph() -> Iterator[None]:
    """Lets the present graph write without telling of it: nobody else can run it.

    Its branches and loop bodies as well; not functions, which others can call.
    """
    before = _OWN.graphs
    _OWN.graphs = (*before, compat.current_graph())
    try:
        yield
    finally:
        _OWN.graphs = before


def of(variable: Any) -> tf.Tensor:
    """The handle of a Keras or TensorFlow variable, for this library itself."""
    with own():
        return compat.handle(variable)


def move(variable: Any, device: str) -> None:
    """Stores a variable on another device; value and name stay (test_handles).

    Graphs that were made before have the storage of before, which is left without
    elements: nothing computes with what the variable was.
    """
    with tf.init_scope(), own():
        before = variable.handle
        with tf.device(device):
            stored = tf.Variable(
                variable.read_value(), trainable=False, dtype=variable.dtype
            )
        variable._handle = stored.handle  # noqa: SLF001
        with tf.device(before.device):
            nothing = tf.zeros([0], variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=before, value=nothing)


def watch(variable: Any, told: Callable[[Any], None]) -> None:
    """Calls a function before others take a new variable's handle (test_handles)."""
    kind = type(variable)
    is_plain = isinstance(variable, resource_variable_ops.BaseResourceVariable)
    if is_plain and not is_watched(variable):
        variable.__class__ = _watching(kind, told)


def is_watched(variable: Any) -> bool:
    """Whether the handle of a variable is watched since it was made."""
    return hasattr(type(variable), "told_of_handles")


_KINDS: dict[tuple[type, Callable[[Any], None]], type] = {}


def _watching(kind: Any, told: Callable[[Any], None]) -> type:
    if (kind, told) not in _KINDS:
        taken: Any = kind.handle

        def handle(self: Any) -> Any:
            if not _OWN.depth and not _is_harmless(_caller(), tells_of_writes=True):
                told(self)
            return taken.fget(self)

        def lazy_read(self: Any, op: Any) -> Any:
            with own():
                unread = kind._lazy_read(self, op)  # noqa: SLF001
            return _of_another(unread, self, told)

        _KINDS[kind, told] = _made(kind, handle, _lazy_read=lazy_read)
    return _KINDS[kind, told]


def _of_another(unread: Any, variable: Any, told: Callable[[Any], None]) -> Any:
    """Lets the result of a write, which has the same handle, tell of the variable."""
    kind: Any = type(unread)
    taken: Any = kind.handle

    def handle(self: Any) -> Any:
        if not _OWN.depth and not _is_harmless(_caller(), tells_of_writes=False):
            told(self.written_variable)
        return taken.fget(self)

    if (kind, told) not in _KINDS:
        _KINDS[kind, told] = _made(kind, handle)
    unread.__class__ = _KINDS[kind, told]
    unread.written_variable = variable
    return unread


def _made(kind: Any, handle: Callable[[Any], Any], **methods: Any) -> type:
    names = {
        "__module__": kind.__module__,
        "handle": property(handle, doc=kind.handle.__doc__),
        "told_of_handles": True,
        **methods,
    }
    return type(kind.__name__, (kind,), names)


def _caller() -> Any:
    """The frame that takes a handle; Keras passes the question on."""
    frame: Any = sys._getframe(2)  # noqa: SLF001
    while frame.f_code.co_name == "handle" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_harmless(frame: Any, *, tells_of_writes: bool) -> bool:
    code = frame.f_code
    if _reads(code):
        return True
    if not tf.executing_eagerly():
        return _is_of_own_graph()
    is_method = code.co_filename == resource_variable_ops.__file__
    return tells_of_writes and is_method and code.co_name in writes.WRITES


_KNOWN: dict[CodeType, bool] = {}


def _reads(code: CodeType) -> bool:
    if code not in _KNOWN:
        path = PurePath(code.co_filename)
        # A variable that is an operand is read, and noted on the tape by its handle.
        is_op = path.parent == _OPS and path.name.startswith("gen_")
        is_reader = code.co_name in _READERS.get(code.co_filename, ())
        is_asking = code.co_name == "_var_key" and path.match(str(_KERAS))
        is_comparing = is_asking or code.co_filename in _COMPARING
        _KNOWN[code] = is_reader or is_op or is_comparing
    return _KNOWN[code]


def _is_of_own_graph() -> bool:
    graph = compat.current_graph()
    while compat.is_control_flow_graph(graph):
        graph = graph.outer_graph
    return any(graph is own for own in _OWN.graphs)

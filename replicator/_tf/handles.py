"""Private names of TensorFlow's variables: who writes one, or takes its handle.

TensorFlow's variables have no version, and no callback. Every write from Python, also
that of a restored checkpoint, is a method of the variable's class, so a variable whose
writes matter gets a subclass of its class in which these methods tell of it.

Every other write begins with the handle. So the handle of a variable that nobody else
has taken is a promise that nothing else writes it: a raw op, a graph, and a random
generator take it from the property that is watched here.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import backprop, tape
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import embedding_ops, resource_variable_ops, script_ops

from replicator._tf import compat

if TYPE_CHECKING:
    from types import CodeType


WRITES = (
    "assign",
    "assign_add",
    "assign_sub",
    "batch_scatter_update",
    *(f"scatter_{op}" for op in ("add", "div", "max", "min", "mul", "sub", "update")),
    *(f"scatter_nd_{op}" for op in ("add", "max", "min", "sub", "update")),
    "_restore_from_tensors",
    "_strided_slice_assign",
)
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


def own() -> compat.Scope:
    """Takes handles, and writes variables, without telling of it."""
    return compat.altered(_OWN, depth=_OWN.depth + 1)


def own_graph() -> compat.Scope:
    """Lets the present graph write without telling of it: nobody else can run it."""
    # Its branches and loop bodies as well; not functions, which others can call.
    graphs = *_OWN.graphs, compat.current_graph()
    return compat.altered(_OWN, graphs=graphs)


def of(variable: Any) -> tf.Tensor:
    """The handle of a Keras or TensorFlow variable, for this library itself."""
    with own():
        return compat.handle(variable)


def move(variable: Any, device: str) -> None:
    """Stores a variable on another device; value and name stay (test_handles)."""
    # Graphs that were made before have the storage of before, which is left without
    # elements: nothing computes with what the variable was.
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


def on_write(variable: Any, told: Callable[[Any], None]) -> None:
    """Calls a function after each write that Python makes eagerly (test_handles)."""
    # Writes of graphs, and those of raw ops on the variable's handle, are not told.
    kind: Any = type(variable)
    if getattr(kind, "on_write_callback", None) is not told:
        variable.__class__ = _telling(kind, told)


@functools.cache
def _telling(kind: Any, told: Callable[[Any], None]) -> type:
    def telling(write: Any) -> Any:
        @functools.wraps(write)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            result = write(self, *args, **options)
            if tf.executing_eagerly():
                told(self)
            return result

        return method

    writes = [name for name in WRITES if hasattr(kind, name)]
    methods = {name: telling(getattr(kind, name)) for name in writes}
    return _subclass(kind, on_write_callback=staticmethod(told), **methods)


def watch(variable: Any, told: Callable[[Any], None]) -> None:
    """Calls a function before others take a new variable's handle (test_handles)."""
    kind: Any = type(variable)
    is_plain = isinstance(variable, resource_variable_ops.BaseResourceVariable)
    if is_plain and not is_watched(variable):
        variable.__class__ = _watching(kind, told)


def is_watched(variable: Any) -> bool:
    """Whether the handle of a variable is watched since it was made."""
    return hasattr(type(variable), "told_of_handles")


@functools.cache
def _watching(
    kind: Any, told: Callable[[Any], None], *, is_of_result: bool = False
) -> type:
    taken = kind.handle

    def handle(self: Any) -> Any:
        if not (_OWN.depth or _is_harmless(tells_of_writes=not is_of_result)):
            told(self.written_variable if is_of_result else self)
        return taken.fget(self)

    def lazy_read(self: Any, op: Any) -> Any:
        with own():
            unread = kind._lazy_read(self, op)  # noqa: SLF001
        result_kind: Any = type(unread)  # the result of a write has the same handle
        unread.__class__ = _watching(result_kind, told, is_of_result=True)
        unread.written_variable = self
        return unread

    names = {} if is_of_result else {"_lazy_read": lazy_read}
    watched = property(handle, doc=taken.__doc__)
    return _subclass(kind, handle=watched, told_of_handles=True, **names)


def _subclass(kind: type, **names: Any) -> type:
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **names})


def _is_harmless(*, tells_of_writes: bool) -> bool:
    """Whether nobody can keep the handle that is taken."""
    frame: Any = sys._getframe(2)  # noqa: SLF001
    while frame.f_code.co_name == "handle" and frame.f_back is not None:
        frame = frame.f_back  # Keras passes the question on
    code = frame.f_code
    if _reads(code):
        return True
    if not tf.executing_eagerly():
        graph = compat.current_function()
        return any(graph is own for own in _OWN.graphs)
    is_method = code.co_filename == resource_variable_ops.__file__
    return tells_of_writes and is_method and code.co_name in WRITES


@functools.cache
def _reads(code: CodeType) -> bool:
    path = PurePath(code.co_filename)
    # A variable that is an operand is read, and noted on the tape by its handle.
    is_op = path.parent == _OPS and path.name.startswith("gen_")
    is_reader = code.co_name in _READERS.get(code.co_filename, ())
    is_asking = code.co_name == "_var_key" and path.match(str(_KERAS))
    return is_reader or is_op or is_asking or code.co_filename in _COMPARING


_VARIABLE = resource_variable_ops.BaseResourceVariable
# What an assignment in a graph returns: another object with the same handle.
_RESULT = resource_variable_ops._UnreadVariable  # noqa: SLF001


def variables_of(graph: Any, resources: Iterable[Any]) -> Mapping[int, Any]:
    """The variables that a graph captures, by the id of the handle (test_captures)."""
    variables = {id(of(v)): v for v in graph.variables if not isinstance(v, _RESULT)}
    # An operation that returns nothing, such as ``assign_add(..., read_value=False)``,
    # tells the graph the handle of its variable, and not the variable.
    wanted = set()
    for resource in resources:
        data: Any = getattr(resource, "_handle_data", None)
        is_set = data is not None and bool(data.is_set)
        if id(resource) not in variables and is_set and len(data.shape_and_type) == 1:
            wanted.add(id(resource))
    # A table that creation fills would have to replace TensorFlow's constructor, and
    # still not know what was made before.
    for thing in gc.get_objects() if wanted else ():
        kind = type(thing)
        if issubclass(kind, _VARIABLE) and not issubclass(kind, _RESULT):
            handle = getattr(thing, "_handle", None)
            if id(handle) in wanted:
                variables.setdefault(id(handle), thing)
    return variables


_FUNCTIONS = script_ops._py_funcs  # noqa: SLF001


# A node names its function by a token. Under the token TensorFlow keeps the tape of a
# call until its gradient takes it, so replicas with one token take that of another. The
# functions live as long as this object.
class OwnTokens:
    """The Python functions of one replica (test_ordering)."""

    def __init__(self) -> None:
        self._own: dict[bytes, bytes] = {}
        self._kept: list[Any] = []

    def own(self, token: bytes) -> bytes:
        """The token of this replica for a function of the traced graph."""
        if token not in self._own:
            function = _FUNCTIONS.get(token.decode())
            if not isinstance(function, script_ops.EagerFunc):
                return token  # of tf.numpy_function, which has no gradient
            if function._is_grad_func:  # noqa: SLF001
                function = self._gradient(function)
            self._kept.append(function)
            self._own[token] = _FUNCTIONS.insert(function).encode()
        return self._own[token]

    def _gradient(self, function: Any) -> Any:
        """The gradient of this replica's call, given that of the traced one."""
        traced = inspect.unwrap(function._func)  # noqa: SLF001
        forward = self.own(inspect.getclosurevars(traced).nonlocals["token"])

        def gradient(*dys: Any) -> Any:
            tape, inputs, outputs = script_ops.tape_cache.pop(forward)
            return tape.gradient(outputs, inputs, output_gradients=dys)

        return script_ops.EagerFunc(gradient, function._out_dtypes, is_grad_func=True)  # noqa: SLF001

"""Functions of TensorFlow and Keras that are others while one graph is built."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

from replicator._tf import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OF_THREAD = threading.local()


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Has calls go elsewhere, in this thread and the current graph (test_verify).

    Branches and bodies of loops belong to the graph; functions that TensorFlow keeps
    for later do not.
    """
    _install(owner, name)
    key = f"{id(owner)} {name}"
    before = vars(_OF_THREAD).get(key)
    vars(_OF_THREAD)[key] = compat.current_graph(), function
    try:
        yield
    finally:
        vars(_OF_THREAD)[key] = before


@functools.cache
def _install(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def called(*args: Any, **options: Any) -> Any:
        found = vars(_OF_THREAD).get(f"{id(owner)} {name}")
        if found is None:
            return original(*args, **options)
        own, function = found
        graph = compat.current_graph()
        while compat.is_control_flow_graph(graph):
            graph = graph.outer_graph
        if graph is not own:
            return original(*args, **options)
        return function(original, *args, **options)

    setattr(owner, name, called)

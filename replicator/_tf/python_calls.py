"""Private facts about ``tf.py_function`` in graphs."""

from __future__ import annotations

import inspect
from typing import Any

from tensorflow.python.ops import script_ops

_FUNCTIONS = script_ops._py_funcs  # noqa: SLF001


class OwnTokens:
    """The Python functions of one replica (test_ordering).

    A node names its function by a token. Under the token TensorFlow keeps the tape of a
    call until its gradient takes it, so replicas with one token take that of another.
    The functions live as long as this object.
    """

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

"""Checks that the functions that users pass can be called with their arguments."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from replicator.errors import StrategyError
from replicator.validation.arguments import shown


def name_of(function: Any) -> str:
    """The name of a function in messages."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def check_input_fn(input_fn: Any, caller: str) -> None:
    """Rejects an object that cannot be called with an ``InputContext``."""
    if not callable(input_fn):
        raise TypeError(
            f"{caller}() takes a function that returns a dataset, but got a "
            f"{type(input_fn).__name__!r}; write def input_fn(ctx): return "
            "dataset.batch(ctx.get_per_replica_batch_size(n)), and pass input_fn; or "
            f"{caller}(lambda ctx: dataset), if its batches are per-replica batches"
        )
    if not _takes(input_fn, 1):
        raise TypeError(
            f"{caller}() calls {name_of(input_fn)!r} with one argument, an "
            "InputContext, which it does not accept; write def input_fn(ctx): even if "
            "ctx is not used"
        )


def check_takes_one(function: Any, caller: str, argument: str, what: str) -> None:
    """Rejects an object that cannot be called with one argument."""
    if not callable(function):
        raise TypeError(
            f"{caller}() calls {argument} with {what}, but got {shown(function)}, "
            "which is not a function; pass a function of one argument"
        )
    if not _takes(function, 1):
        raise TypeError(
            f"{caller}() calls {argument} with {what}, but {name_of(function)!r} does "
            "not take one argument; pass a function of one argument"
        )


def check_not_distributed() -> None:
    """Rejects a step that is traced while Keras has a distribution of its own."""
    keras = sys.modules.get("keras")
    found = keras and keras.distribution.distribution()
    if found:
        raise StrategyError(
            f"keras.distribution is set to {type(found).__name__}, which Keras accepts "
            "on TensorFlow and does not do; call "
            "keras.distribution.set_distribution(None), and let the replicator place "
            "replicas and stages"
        )


def check_step_fn(step_fn: Any, *, takes_batch: bool) -> None:
    """Rejects an object that cannot be called as a step."""
    if not callable(step_fn):
        raise TypeError(
            f"run() takes a step function, but got a {type(step_fn).__name__!r}; pass "
            "the function itself, run(step_fn, inputs), not its return value"
        )
    if _takes(step_fn, 1 if takes_batch else 0):
        return
    name = name_of(step_fn)
    if not takes_batch:
        raise TypeError(
            f"step {name!r} takes arguments, but run() got no inputs; write "
            "run(step_fn, inputs) with inputs = repl.make_input_iterator(input_fn), or "
            "a step without arguments"
        )
    if _takes(step_fn, 0):
        raise TypeError(
            f"step {name!r} takes no argument, but run() got inputs; write def "
            "step_fn(batch):, or run(step_fn) without inputs"
        )
    raise TypeError(
        f"step {name!r} cannot be called with one argument, but run(step_fn, inputs) "
        "passes the whole batch as one argument; write def step_fn(batch): x, y = "
        "batch, and repl.run(step_fn, inputs)"
    )


def check_no_more(caller: str, more: tuple[Any, ...], others: dict[str, Any]) -> None:
    """Rejects arguments in the style of ``tf.distribute``."""
    if more or others:
        got = [f"{name}=" for name in others] or [f"{len(more)} extra arguments"]
        raise TypeError(
            f"{caller}() does not take {', '.join(got)}; write "
            f"repl.{caller}(step_fn, inputs, num_steps=k) with inputs = "
            "repl.make_input_iterator(input_fn), or a nest of PerReplica such as "
            "(x, y); the step takes it as one argument: def step_fn(batch): x, y = "
            "batch"
        )


def _takes(function: Any, num_arguments: int) -> bool:
    """Whether a function can be called with this number of positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a builtin without a signature
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True

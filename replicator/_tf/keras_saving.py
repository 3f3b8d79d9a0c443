"""What Keras and TensorFlow save, and under which name."""

from __future__ import annotations

from typing import Any

from keras.src.saving.keras_saveable import KerasSaveable
from tensorflow.python.trackable import base as trackable


class SavedApart(KerasSaveable):
    """State with a group of its own in Keras' files (test_keras_saving).

    Keras finds it as an attribute of an object that it saves, and calls its
    ``save_own_variables`` and ``load_own_variables``.
    """

    def _obj_type(self) -> str:
        return "Optimizer"  # Keras looks into these attributes only


class UsedAsWrapped(trackable.Trackable):
    """Something that passes for what its ``wrapped`` holds (test_wrapper).

    ``isinstance`` and Keras' files take it for an instance of that class. TensorFlow
    sees the children of the object inside, and leaves with it what a restored
    checkpoint has for variables that are made later. Attributes that are not its own
    are read from the object inside and written to it.
    """

    wrapped: Any

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # not yet set while unpickling or copying
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `optimizer.learning_rate = 0.01` must reach the optimizer that does the work.
        # What constructors set before `wrapped` is this object's own.
        if "wrapped" not in vars(self) or name in vars(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self.wrapped, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type = self.wrapped.__class__
        return kind


def _forwarded(name: str) -> property:
    return property(lambda self: getattr(self.wrapped, name))


# What the graph of objects is made of; values are those of the variables in it.
for _name in (
    "_deferred_dependencies",
    "_handle_deferred_dependencies",
    "_lookup_dependency",
    "_maybe_initialize_trackable",
    "_track_trackable",
    "_trackable_children",
    "_unconditional_checkpoint_dependencies",
    "_unconditional_dependency_names",
    "_update_uid",
):
    setattr(UsedAsWrapped, _name, _forwarded(_name))

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
    """Something that passes for what its ``wrapped`` holds (test_keras_spelling).

    ``isinstance`` and Keras' files take it for an instance of that class. TensorFlow
    sees the children of the object inside, and leaves with it what a restored
    checkpoint has for variables that are made later.
    """

    wrapped: Any

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

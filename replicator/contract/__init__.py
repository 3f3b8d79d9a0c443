"""The contract of every backend: the ``Replicator`` base class and its parts."""

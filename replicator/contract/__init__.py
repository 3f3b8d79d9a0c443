"""What every backend promises: the ``Replicator`` base class and what it is made of."""

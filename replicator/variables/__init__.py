"""Variables and their copies: kinds, owners, and how copies stay identical.

``kinds`` and ``table`` say what replicas use in place of the user's variables. Around a
run, ``coherence`` keeps both in agreement: ``outside_writes`` detects by
``fingerprints`` what the user has set, ``copy_values`` is what copies become then,
``outside_values`` what the user's variables read as afterwards. ``partial`` and
``ownership`` are for accumulated gradients and sharded updates, ``worker_values`` for
several processes.
"""

"""Variables and their copies: kinds, owners, and how copies stay identical.

``kinds`` and ``table`` say what replicas use in place of the user's variables. Around a
run, ``coherence`` keeps both in agreement: ``writes`` detects what the user has set and
resets copies, ``values`` is what the user's variables read as afterwards, and what
workers exchange of them. ``ownership`` is for sharded updates.
"""

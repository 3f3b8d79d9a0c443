"""The collectives, one per file: what each is, and the function that users call.

The files of this folder are the list of kinds; ``replicator/__init__.pyi`` makes their
functions public. ``docs/howto/collective.md`` adds one.
"""

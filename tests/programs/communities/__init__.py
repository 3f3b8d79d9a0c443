"""Programs in the shape that libraries publish, each with ``train(strategy)``.

``strategy`` is TensorFlow's default one, which is one device, or that of a replicator:
nothing else differs. What ``train`` returns must be the same on both.
"""

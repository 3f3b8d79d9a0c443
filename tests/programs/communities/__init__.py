"""Programs as libraries publish them; ``train(strategy)`` gives the same on any."""

"""Peers in Horovod, with TensorFlow 2.15: a process per replica, Gloo."""

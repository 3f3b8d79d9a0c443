"""Actors: processes without TensorFlow that step environments and write the replay."""

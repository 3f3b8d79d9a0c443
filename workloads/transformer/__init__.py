"""A decoder-only Transformer: a language model of bytes."""

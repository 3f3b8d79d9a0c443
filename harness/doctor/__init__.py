"""Whether timings of this machine can be trusted, and what to do where they cannot."""

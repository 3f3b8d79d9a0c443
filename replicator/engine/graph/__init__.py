"""Pure functions on graphs: trace, optimize, analyse, replicate."""

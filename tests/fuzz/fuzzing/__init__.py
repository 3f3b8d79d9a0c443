"""Random step functions, run by the engine and by an interpreter in lock step."""

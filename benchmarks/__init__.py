"""Programs that measure this project; `make bench` runs them all."""

"""What a record says of the machine, its GPUs and the environment of a process."""

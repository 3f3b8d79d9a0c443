"""The protocol of the client: what a program and the harness say, and write down."""

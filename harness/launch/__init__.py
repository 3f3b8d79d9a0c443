"""Launchers: how the processes of one trial are started on its hosts."""

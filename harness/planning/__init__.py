"""Plans the trials of a request and the study directory."""

"""From a request to trials and a study directory."""

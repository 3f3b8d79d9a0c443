"""JobSet of Kubernetes: files for gangs of pods."""

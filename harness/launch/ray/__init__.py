"""Ray: gangs on the hosts of its cluster, for machines without a scheduler."""

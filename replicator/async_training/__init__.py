"""Asynchronous training over parameter servers, on TensorFlow's own coordinator.

Variables live on servers; every worker reads them, computes a gradient, and commits an
update in one locked section per server. In the order of a step's life: ``connection``
(the cluster, lost servers), ``table`` (which variables workers share, and on which
server they are), ``steps`` (tracing), ``commit`` (reading variables in few transfers,
the update, its staleness), ``dispatch`` (pipelines and steps of workers that may be
lost and come back).
"""

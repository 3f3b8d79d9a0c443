"""The names of the stages of pipelines, by which the engine knows them."""

FUNCTION_PREFIX = "replicator_stage"

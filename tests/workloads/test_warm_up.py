"""The program that has a driver compile: it runs the steps that others measure."""

import short_resnet

from workloads import warm_up


def test_a_workload_is_built_and_run_in_each_number_type(monkeypatch):
    """On CPUs, with a short network: what would end it on a GPU ends it here."""
    monkeypatch.setattr(warm_up, "_PER_REPLICA_BATCH_SIZE", 2)
    built = []
    from workloads.resnet50.workload import WORKLOAD

    build = type(WORKLOAD).build

    def note(self, repl, **options):
        program = build(self, repl, **options)
        built.append(program)
        return program

    monkeypatch.setattr(type(WORKLOAD), "build", note)
    with short_resnet.short():
        warm_up.warm_up("resnet50", "smoke", ("float32", "mixed_bfloat16"))

    assert ["float32", "bfloat16"] == [program.compute_dtype for program in built]
    assert [2, 2] == [program.per_replica_batch_size for program in built]

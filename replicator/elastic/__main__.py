from replicator.elastic.supervisor import run

run()

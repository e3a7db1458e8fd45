"""One federated workload, carried out by us, by our peers and by a bare loop: each module here is a process of its own.

``python -m fedqssl.studies.bench.throughput.NAME DATA ITERATIONS PROCESSES BITS`` prints a line when the measured iterations
begin and another when they end. :mod:`fedqssl.studies.bench.simulation` starts and measures them. Peers' processes may run in
a virtual environment without our dependencies, so that only ``ours`` imports more of fedqssl than the workload.
"""

"""The examination of a host: what serving and tuning on it needs, and what to do about what is missing.

examination.py       reads everything, in parallel and with time limits
host_values.py       limits, memory, disk, idle states, CUDA toolkit, ports, processes: one script, one round trip
engine_packages.py   versions of an engine's Python packages, asked from the engine's own Python
table.py, table.json versions and limits to compare with, with their sources
checks.py            all checks, and the findings in the order of their level
host_checks.py       checks of the system, its limits and its processes
gpu_checks.py        checks of the driver and of the GPUs
stack_checks.py      checks of CUDA, torch, FlashInfer and NCCL against the GPUs
cluster_facts.py     what is on the nodes of a cluster, by cluster_node.py, a program that runs on each node
cluster_checks.py    checks of the nodes against each other and against a plan
facts_text.py        the facts as lines of text
"""

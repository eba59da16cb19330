"""The examination of a host: what serving and tuning on it needs, and what to do about what is
missing.

examination.py       reads everything, in parallel and with time limits
host_values.py       limits, memory, disk, idle states, CUDA toolkit, ports, processes: one script, one round trip
engine_packages.py   versions of an engine's Python packages, read by the engine's own Python
table.py, table.json versions and limits to compare with, with their sources
checks.py            all checks of a host
host_checks.py       checks of the system, its limits and its processes
gpu_checks.py        checks of the driver and of the GPUs
cap_checks.py        checks of what holds the GPUs or the host down now
stack_checks.py      checks of CUDA, torch, FlashInfer and NCCL against the GPUs
cluster_facts.py     reads the properties of a cluster's nodes, by cluster_node.py, a program that runs on each node
cluster_checks.py    checks of the nodes against each other and against a plan
multi_gpu.py         the paths between GPUs: what gpu/topology.py and gpu_trial.py say of them, kept on the host
gpu_trial.py         the program that copies between the GPUs and compares the bytes, each case in a child that may hang
multi_gpu_checks.py  checks of these paths; multi_gpu_text.py has the matrix and the lines
power_off.py         what was recorded before the host went off without a shutdown
known_traps.py       published traps of serving, and what of Workbench sees each (known_traps.json)
facts_text.py        the properties of a host as lines of text
optional_text.py     texts of values that may be unknown
"""

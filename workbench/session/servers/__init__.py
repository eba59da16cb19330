"""The servers of the host. The modules of this folder:

servers, run_log                start, restart and stop, and the log of the selected server
adoption                        servers that launchers such as systemd run: adopting them, and restarts
server_address, endpoint        servers that others started, known by a URL; the address of a server for clients
arm_targets                     the server that an arm of an experiment measures
cluster_servers                 one model on several hosts
engine_live, engine_episodes    the engine's counters each second, with queueing and preemption as events
walltime                        warnings before a scheduler ends a server
"""

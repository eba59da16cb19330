"""The host of the session, and other hosts. The modules of this folder:

link, names                     the link to the host, and the names of hosts
settings, check                 the host's settings in config.toml and hosts.toml, and the check that they are right
other_hosts                     the sessions of hosts other than the session's own
cluster_hosts, cluster_check    clusters of hosts.toml, each used as one host, and their check before a start
doctor                          the examination of the host
gpu_paths                       the trial of the paths between the GPUs
models, model_work              model files on hosts: where they are, checks, copies and downloads
"""

"""Experiments and sweeps: several benchmarks with one question. The modules of this folder:

conduct                         the course that all of them share: the next run, until the end
experiments                     A/B experiments: start, resume, stop
experiment_run, experiment_arms the order of their runs, and the servers and settings of A and B
sweeps, sweep_parts             sweeps, and the parts of the session that they use
sweep_progress, confirmation    a running sweep, and the experiment on its best value
gpu_sweep, gpu_sweep_plan       sweeps of a GPU setting
flag_sweep, flag_sweep_plan     sweeps of launch flags
concurrency_sweep               sweeps of the number of streams
user_capacity, rate_capacity    the searches under an SLO: for the number of users, and for the rate of requests
load_search                     what both searches share
tune, tune_plan                 tunes: the race of the candidates, and the final
bisect                          bisections: the first bad one of several versions
night_watch                     nights of watches: an upgrade against the pinned version
"""

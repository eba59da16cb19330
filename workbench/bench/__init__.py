"""Benchmarks: a worker process with its own epoll client, the figures of a run, and the comparison of runs.

Import from the modules (`runner.run`, `energy.with_energy`, `compare.compare`): the worker must start in 0.15 s, so
nothing is imported here.
"""

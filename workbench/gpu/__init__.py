"""The GPUs of a host: what they show, what Workbench sets on them, and the guard that reverts it.

telemetry/  the agent that reads NVML on the host, and the source that runs it
settings/   plan, apply, verify and revert GPU settings; the journal and the host's register
guard/      a program of its own on the host: it reverts settings when nobody watches over them
remote_programs.py          packs these programs for a python3 on another machine
measurement_lock*.py        one measurement at a time on a host
process_facts.py            processes and the boot of a machine, which identify owners
"""

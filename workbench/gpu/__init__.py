"""The GPUs of a host: their readings, the settings that Workbench changes on them, and the guard that reverts the
settings.

telemetry/            the agent that reads NVML on the host, and the source that runs the agent
settings/             plan, apply, verify and revert GPU settings; the journal and the host's register
guard/                the program on the host that reverts settings if nobody watches over them
remote_programs.py    the list of these programs, as python3 on another machine gets them
measurement_lock*.py  the lock that lets one Workbench at a time measure on a host
process_facts.py      facts about processes and the boot, which identify owners
"""

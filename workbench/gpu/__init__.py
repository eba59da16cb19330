"""The GPUs of a host: their readings, the settings that Workbench changes on them, and the guard
that reverts these settings.

telemetry/            the agent that reads NVML on the host, and the code that runs it and receives its readings
settings/             plan, apply, verify and revert GPU settings; the journal and the host's register
guard/                the program on the host that reverts settings if Workbench no longer sends heartbeats
remote_programs.py    the Python programs that Workbench runs on a host, such as the agent and the guard
topology.py           the program that reads how GPUs are connected: PCIe, NVLink, NUMA, IOMMU, ACS, peer-to-peer status
pynvml_part.py        the part of pynvml that the telemetry agent uses
measurement_lock*.py  the lock that lets one Workbench at a time measure on a host
process_facts.py      boot id, and start times and users of processes, which identify who made a change
"""

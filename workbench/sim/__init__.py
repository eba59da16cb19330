"""Simulated hosts: a driver, an nvidia-smi and inference engines made of files and real processes, without a GPU.

Nothing here is measured. The simulation is a model with constants from vendor data and public measurements, so that
tuning it has the effects of tuning real hardware. Workbench marks all results of it as simulated.

simulated_host.py  the host that a session uses: an environment in which the programs of bin/ come first
profiles.py        hosts and GPUs; model_sizes.py has LLMs (data in JSON files beside both)
driver_state.py    the driver: settings, loads and faults; physics.py computes clocks, power and temperature
nvml_library.py    the driver as NVML, which driver.py gives to the telemetry agent; nvidia_smi.py as nvidia-smi
engine_server.py   the program of an engine: flag_parser, launch_options; answers --version, or runs one server
engine_process.py  that server, with memory_fit, startup, openai_api, scheduler
ranks.py           links between the ranks of a server on several hosts; ray_stand_in.py stands in for Ray
engines/           one class per simulated engine

All modules but simulated_host run with a bare python3 >= 3.9 and the standard library.
"""

"""Simulated hosts: a driver, an nvidia-smi and inference engines made of files and real processes,
without a GPU.

Nothing here is measured. The simulation is a model with constants from vendor data and public
measurements, so that a changed setting has a similar effect as on real hardware. Workbench marks
all results of it as simulated.

simulated_host.py  the host that a session uses: an environment in which the programs of bin/ come first on the PATH
profiles.py        hosts and GPUs; model_sizes.py has LLMs (data in JSON files in the same directory)
driver_state.py    the driver: settings, loads and faults; physics.py computes clocks, power and temperature
nvml_library.py    the driver as an NVML library, which driver.py gives to the telemetry agent
nvidia_smi.py      the driver as the program nvidia-smi; nvidia_smi_fields.py has its query fields
engine_server.py   the program of an engine: parses its flags, prints its version or runs one server
engine_process.py  the server, with memory_fit, startup, openai_api, http_server, reply_text, scheduler, step_time
flag_parser.py     its flags; launch_options.py has what they mean for every engine
engine_worker.py   a worker process; engine_log.py has the log, engine_metrics.py the values of /metrics
language_model.py  what it answers with log probabilities; scored_reply.py replies with them
stand_in/          a torch that copies nothing, for the trial of copies between GPUs
ranks.py           links between the ranks of a server on several hosts; ray_stand_in.py replaces Ray's program
engines/           one class per simulated engine

All modules except simulated_host run with a bare python3 >= 3.9 and the standard library.
"""

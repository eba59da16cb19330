"""Telemetry: readings of a host's GPUs, by an agent on that host.

source                          starts the agent and receives its readings
source_of_host, cluster_source  the telemetry of a host; of a cluster, that of all its nodes as one
agent, readings, nvml_library   the agent: a loop, the readings of one GPU, and NVML through pynvml
agent_messages                  the agent's JSON documents as data
nvidia_smi, nvidia_smi_stream   readings by nvidia-smi, if the agent cannot run
board_power                     power rails of a DGX Spark
clock_event_reasons             the driver's reasons for lower clocks, by name
plausible_readings              the values that a GPU can have
outer_processes                 names and containers of GPU processes, for a host that is a container
reading_buffer                  the readings that are kept for a benchmark
benchmark_readings              their means and totals
steady_state                    whether a loaded GPU has settled after a change
"""

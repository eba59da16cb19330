"""The application without a screen. Front ends call the parts of `session.Session` and draw its state.

session, state, state_holder    the session, its state as one frozen value, and the holder that replaces the state
host_link, host_names           the link to the host, and the names of hosts
cluster_hosts, cluster_check    clusters of hosts.toml as hosts, and their check before a start
fleet                           several hosts; fleet_member reads one of them, fleet_state is what the screen draws
host_settings, host_check       what config.toml and hosts.toml say about the host, and whether it is so
models                          where hosts have a model; checks, copies and downloads
telemetry_watch                 readings of the GPUs
timeline, timeline_events       the history of these readings and of the engine's, and the events that explain them
kept_history                    the history on disk: read when a screen opens, written once a second
engine_live, engine_episodes     the engine's counters each second, with queueing and preemption as events
presets, preset_variables       the library, and the values of a preset's variables
plans, plan_editor              the plan under edit
servers, run_log                servers of the host, and the log of the selected one
walltime                        warnings before a scheduler ends a server
adoption                        servers that launchers run: following those of others, and restarts
server_address                  servers that others started, known by a URL
gpu_control                     GPU settings: plan, apply, revert; its parts are gpu_rights, gpu_guard, gpu_alterations
gpu_proof, gpu_evidence         proofs that settings are in force; clock_probe tries another clock lock
server_load, benchmark_load     loads on a server, never two at once; sustained_load is one without a stored result
measurement_lock                the host's measurement lock: one measurement on the host at a time
bench, bench_spec               benchmarks; bench_measurement runs one, with gpu_meter and engine_watch beside it
conditions                      the conditions under which a result was measured
results, reports                stored results, and reports on them; result_rows makes the rows (bench_row) of a list
result_timelines                what happened around each benchmark
experiments                     A/B experiments; experiment_run carries one out on experiment_arms and arm_targets
other_hosts                     names of hosts, and sessions of those that are used besides this one
sweeps, sweep_parts             sweeps; sweep_progress is a running sweep, paired_runs confirms its best value
gpu_sweep, flag_sweep           sweeps of a GPU setting and of flags; their plans: gpu_sweep_plan, flag_sweep_plan
concurrency_sweep               sweeps of the number of streams
previous_settings               the value of a setting before a probe or a sweep, and its restoration
last_screen                     marks, forms and results of the last screen
uninterrupted                   a helper for work that must end even if its task is cancelled
"""

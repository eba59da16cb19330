"""The application without a screen. Front ends (the screen and the commands) call the parts of
`session.Session` and draw the state of that session. The modules of this package:

session, state, state_holder    the session, its state as one frozen value, and the holder that replaces the state
host_link, host_names           the link to the host, and the names of hosts
cluster_hosts, cluster_check    clusters of hosts.toml, each used as one host, and their check before a start
fleet                           several hosts on one screen; fleet_member reads one host, fleet_state is their state
host_settings, host_check       the host's settings in config.toml and hosts.toml, and the check that they are right
models                          model files on hosts: where they are, checks, copies and downloads
telemetry_watch                 readings of the GPUs
timeline, timeline_events       the history of the readings of GPUs and engine, and the events that explain them
kept_history                    the history on disk, read when a screen opens and written once a second
engine_live, engine_episodes     the engine's counters each second, with queueing and preemption as events
presets, preset_variables       the library of presets, and the values of a preset's variables
plans, plan_editor              the plan under edit: everything that a start of a server needs
servers, run_log                the servers of the host, and the log of the selected server
walltime                        warnings before a scheduler ends a server
adoption                        servers that launchers such as systemd run: adopting them, and restarts
server_address                  servers that others started, known by a URL
gpu_control                     GPU settings: plan, apply, revert; its parts are gpu_rights, gpu_guard, gpu_alterations
gpu_proof, gpu_evidence         proofs, from loads, of which settings work; clock_probe tries another clock lock for 2 s
server_load, benchmark_load     loads on a server, never two at once; sustained_load stores no result
measurement_lock                the host's measurement lock: one measurement on the host at a time
bench, bench_spec               benchmarks; bench_measurement runs one, gpu_meter and engine_watch read GPUs and engine
text_probe                      asks the server prompts before and after a benchmark, and judges the text
conditions                      the conditions under which a result was measured
results, reports                stored results, and reports on them; result_rows and bench_row make the rows of the list
result_timelines                the readings of GPUs and engine around each benchmark
experiments                     A/B experiments; experiment_run orders the runs, experiment_arms makes them
other_hosts                     the sessions of hosts other than the session's own
sweeps, sweep_parts             sweeps; sweep_progress is a running sweep, paired_runs confirms its best value
gpu_sweep, flag_sweep           sweeps of a GPU setting and of flags; their plans: gpu_sweep_plan, flag_sweep_plan
concurrency_sweep               sweeps of the number of streams
previous_settings               the value of a GPU setting before a probe or a sweep, and its restoration
last_screen                     what the last screen stored: marks, values of forms, results
uninterrupted                   a helper for work that must be completed even if its task is cancelled
"""

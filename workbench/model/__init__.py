"""Plain data without I/O, shared by all packages: frozen dataclasses of the standard library. Only preset.py uses
pydantic, because it parses files.

bench, metrics       a benchmark: workload, results, conditions and comparison; the table of its metrics
conditions_table     the conditions of a result as text
experiment, sweep    series of benchmarks: A/B experiments, and one benchmark per value of a setting
series_state         the states of such a series
plan, flags          a launch plan, its flags, and the command that it becomes
preset               the schema of a preset file
run_options/         what can run a server, and the options of each launcher
job, job_request     a job of a scheduler, and what a server asks of one in the words of Slurm and PBS
host_entry           hosts and clusters of hosts.toml
node_network         network interfaces of hosts, and the places of a cluster's nodes
cluster_run          a server that spans several hosts
model_copy           copies of a model's files on hosts
engine_live          the live metrics of an engine
systemd_text         words of the file of a systemd unit
server_run           state, log and counters of a server run
process_container    the container of a process, from its control groups
gpu, settings        telemetry of GPUs; the table of GPU settings and their values
setting_commands     how each setting is set, checked, compared and shown; programs on a host use this module too
setting_records      commands, outcomes and records of changes of settings
timeline             the history of a host: values by the second, and events
measurement_owner    the Workbench that measures on a host
errors, findings     problems that are reported to the user
secrets, api_key     masking of secrets, and the key of a server
untrusted_text       cleaning of text from other programs
distribution, fuzzy  statistics of values; search in lists
json_records         dataclasses to JSON and back
bench_cli_options    a workload as command-line options
"""

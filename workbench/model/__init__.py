"""Plain data without I/O, shared by all rooms: frozen dataclasses of the standard library (pydantic only in preset.py,
which parses files).

bench, metrics     a benchmark: workload, results, conditions, comparison; the list of its metrics experiment, sweep
series of benchmarks: A/B experiments, and one benchmark per value of a setting plan, flags        a launch plan, its
flags, and the command that it becomes preset             the schema of a preset file server_run         state, log and
counters of a server run gpu, settings      telemetry and settings of GPUs errors, findings   what is reported to the
user secrets, api_key   what must not be shown, and the key of a server untrusted_text     cleaning of text from other
programs json_records       dataclasses to JSON and back bench_cli_options  a workload as command-line options turn
who measures on a host
"""

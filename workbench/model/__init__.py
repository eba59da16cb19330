"""Plain data without I/O, shared by all packages: frozen dataclasses. Only preset.py uses pydantic,
because it parses files.

lazy_dataclass       the decorator of all dataclasses, whose methods are made when they are needed
named_tuple          NamedTuple without the module typing

bench, metrics       a benchmark: workload, results, conditions and comparison; the table of its metrics
conditions_table     the conditions of a result as text
experiment, sweep    series of benchmarks: A/B experiments, and one benchmark per value of a setting
series_state         the states of an experiment or a sweep
tune, tune_standings the search for a better configuration; where its candidates stand
watch, bisection     upgrades judged at night; the first bad one of several versions
change_points        change points of a series of measurements
slo, operating_map   limits on latencies; what a user gets against what a GPU gives
think_time           the pause between an answer and the next request
plan, flags          a launch plan, its flags, and the command made from a plan
preset               the schema of a preset file
run_options/         the launchers that can run a server (systemd, docker, slurm, ...) and the options of each launcher
job, job_request     a job of a scheduler, and the options with which a server requests resources from Slurm or PBS
host_entry           hosts and clusters of hosts.toml
node_network         network interfaces of hosts, and the addresses of a cluster's nodes
cluster_run          a server that spans several hosts
model_copy           copies of a model's files on hosts
engine_live          the live metrics of an engine
in_force             the requested settings of a running server, compared with those that it uses
systemd_text         quoting of command lines in the file of a systemd unit
open_files           the limit of open files that a server needs
loopback             whether only programs on the same host reach an address
server_run           state, log and counters of a server run
process_container    the container of a process, from its control groups
pcie_link            the nominal bandwidth of a PCIe link
gpu_allotment        the GPUs that a job or CUDA_VISIBLE_DEVICES has
host_commands        the commands that run on a host, and the host in those that a text proposes
host_cores           the CPU cores of a host, as a program there may use them
gpu, settings        telemetry of GPUs; the table of GPU settings and their values
gpu_readings         the table of the readings of a GPU: how each is read and shown
setting_commands     the commands that change settings, and the check, comparison and text of each setting's values;
                     programs on a host use this module too
setting_records      commands, outcomes and records of changes of settings
unconfirmed_changes        changes of settings that were begun and whose end nobody has written down
core_values          settings of the CPU cores as text
alerts               the rules of alerts, and alerts
timeline             the history of a host: metric values per second, and events
beat                 when the tasks of a screen wake up in each second
measurement_owner    the Workbench process that measures on a host
errors, findings     problems that are reported to the user
interrupted          the end of work that was interrupted, with what it has left
secrets, api_key     masking of secrets, and the API key of a server
answer_text          the text of a model's answers: its features, and whether it is language
answer_probe         fixed prompts for a server, and what their answers say
answer_usage         whether usage counts the tokens of the text, by answers of two lengths
answer_words         the words of several answers: whether they are language, and in order
answer_verdict       what follows from the text of a benchmark and of its probe
untrusted_text       cleaning of text from other programs
untrusted_numbers    checks of numbers from other programs; untrusted_records converts whole JSON objects
quality              scored texts, greedy answers, and whether the answers of two servers are the same
quality_limits       what the numbers and texts of a comparison of answers can be
student_t            Student's t distribution
model_shape          the shape of a decoder model: its KV cache and its weights
multiple_tests       several statistical tests at once
distribution, fuzzy  statistics of values and the table of percentiles; search in lists
known_values         means, ratios and lists of values of which some are not known
json_records         dataclasses to JSON and back
load_spec            the workload of a benchmark, with the declaration of each of its options
declared_options     what the declaration of an option consists of, and the kinds of values
bench_cli_options    a workload as command-line options
"""

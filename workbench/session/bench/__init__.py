"""Benchmarks and other loads on a server. The modules of this folder:

bench, spec, unfinished_benchmarks    benchmarks, what they ask for, and those that a screen left behind
measurement                     one benchmark from its lock to its result
gpu_meter, engine_watch         the GPUs and the engine's counters during a benchmark
text_probe                      asks the server prompts before and after a benchmark, and judges the text
answer_client, earlier_results  its requests, and the earlier result with which its text is compared
find_users                      the number of users within an SLO, as one result
benchmark_load, server_load     loads on a server, never two at once
capture                         where the server is reached whose traffic is captured
sustained_load                  a load without a result, for proofs and probes
measurement_lock                the host's measurement lock: one measurement on the host at a time
result_rows, row                the rows of the list of results
row_changes                     by how much the speed of a row differs from another
"""

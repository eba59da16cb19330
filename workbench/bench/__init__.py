"""Benchmarks: a worker process with its own load client, the metrics of a run, and the comparison
of runs.

Load: `runner` runs the process `worker`, which sends the load. The worker runs on this machine or
on the server's host (`workers`, `host_client`, `older_python`). Inside the worker, `workload` makes
the requests, `schedule` times them, and `client` sends them. Instead of the worker, `own_command`
can run a command of the user. `endpoint_file` describes the server to that command if it is
vf-eval, and `own_command_watcher` ends the command together with Workbench.
  client, connection, poller     one epoll loop over sockets, with the kernel's receive times
  read_pause, text_chunk         less CPU time: pauses between reads, a fast path for plain text
  whole_answer                   a fast path for short answers that differ only in their id and text
  client_process, client_report  signals, priority and progress of a client process; its report
  several_processes, load_share  one load from several processes
  http1, sse, exchange, reply    one answer: HTTP/1.1, server-sent events, completion chunks
  kept_text, answer_sample       the ends of an answer's text; a sample of the answers of a run
  time_limits, client_cpu, tls   limits of requests and runs, CPU of the client, certificates
  trace_file, trace_load         recorded traffic, and its requests as the client gets them
  trace_conversations            conversations in ShareGPT's form as a trace
  trace_text                     the prompts of a trace: real text whose tokens are known
  real_text                      excerpts of real text, for synthetic prompts
  profiles, prompt_file          named workloads, and the user's own prompts
  prompt_length                  how many words give a prompt of an exact token count

Capture: `traffic_capture` starts two processes in front of a server. `proxy_process` passes bytes
on and nothing else; `short_slice` lets it run as soon as it wakes. `trace_writer` reads what it has
passed on, finds the requests in it (`proxied_traffic`), and writes them as rows without text
(`captured_traffic`).

Result: `summary` computes the metrics of a run from its `records`, over the `steady_window`, with
`request_latency` and, under an SLO, `slo_attainment`. `energy` adds power and energy.
`time_uncertainty` says how exact the latencies are, `result_validity` and `steadiness` whether the
metrics are valid, and `trace_reuse` whether a trace's prefixes were reused.

Several results: `repeated_runs`, `compare` with `metric_changes` and `compared_texts`, `experiment`
with `experiment_disturbances` and, on two hosts, `twins`, and the knee of a sweep (`sweep_knee`).
  user_capacity, rate_capacity   the searches under an SLO: for the number of users, and the rate
  user_estimate                  the number of users as one number for a comparison
  independent_requests           how many independent requests the requests of a run are worth
  tune_race                      the race of a tune's candidates
  watch_rule                     whether an upgrade is worse than the pinned version

This file imports nothing, because the worker process must start within 0.15 s.
"""

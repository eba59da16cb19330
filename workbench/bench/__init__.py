"""Benchmarks: a worker process with its own load client, the metrics of a run, and the comparison of runs.

Load: `runner` has the process `worker` send it, as a child of this process or on the server's host (`workers`,
`host_client`, `older_python`). In it, `workload` makes the requests, `schedule` times them, and `client`
sends them. `own_command` runs a command of the user instead, with an `endpoint_file` if it is vf-eval;
`own_command_watcher` ends it together with Workbench.
  client, connection, poller     one epoll loop over non-blocking sockets with the kernel's receive times
  read_pause, text_chunk         what makes a token cheap: rests between reads, chunks that need no parsing
  client_process, client_report  what every process of the client does around it, and what it reports
  several_processes, load_share  one load from several processes
  http1, sse, exchange, reply    one answer: HTTP/1.1, server-sent events, completion chunks
  time_limits, client_cpu, tls   limits of a request and a run, CPU use of the client, trusted certificates
  profiles, prompt_file, prompt_length   named workloads, the user's prompts, prompts of an exact token count

Result: `summary` makes the metrics of a run from `records`, over the `steady_window`, and `energy` adds power and
energy. `result_validity` and `steadiness` say whether the metrics are valid.

Several results: `repeated_runs`, `compare` with `metric_changes` and `student_t`, `experiment` with
`experiment_disturbances` and, on two hosts, `twins`, and the knee of a sweep (`sweep_knee`).

This file imports nothing, because the worker process must start within 0.15 s.
"""

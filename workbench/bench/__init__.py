"""Benchmarks: a worker process with its own load client, the metrics of a run, and the comparison of runs.

The load: `workload` makes requests, `schedule` times them, `client` sends them in `worker`, a process of its own that
`runner` starts. `own_command` runs a command of the user instead.
  client, connection, poller     one epoll loop over non-blocking sockets with kernel receive stamps
  http1, sse, exchange, reply    one response: HTTP/1.1, server-sent events, completion chunks
  time_limits, client_cpu, tls   limits of a request and a run, CPU time of the client, trusted certificates
  profiles, prompt_file, prompt_length   named workloads, the user's prompts, prompts of an exact token count

The result: `records` become `summary`, over the `steady_window`, with `energy`; `result_validity` and `steadiness` say
whether it is valid.

Several results: `repeated_runs`, `compare` with `metric_changes` and `student_t`, `experiment` with
`experiment_diagnosis`, and the `knee` of a sweep.

This file imports nothing, since the worker must start within 0.15 s.
"""

"""Inference servers: find the installed engine, start a server, watch it until it is ready, follow
its log, read its counters, stop it, and adopt servers that already run.

  supervisor              the servers of one host: start, watch, adopt, stop
  watched_run             one run as the supervisor knows it: state, log, HTTP connection
  run_state               computes the status of a run from its files and processes
  launchers/              servers that systemd, a container program or a scheduler runs; each has a keeper, a process
                          on the host that follows the server for Workbench
  launched_runs           stop and restart of such servers, and a new keeper for a server that lost its keeper
  jobs                    the jobs of the user on a login host
  cluster_supervisor      servers whose ranks are runs on several hosts; ray_cluster starts Ray for them
  watched_rank            the start of a rank with a watch process (rank_watch), which ends it if another rank ended
  cluster_state           the status of a server of several ranks; cluster_log is the log of such a server
  memory_guard            a process that stops a server before its host runs out of memory
  ready_proof             records the first answers of a server, which prove that it is ready
  run_start               writes the files of a run and starts its process
  run_directory           the files of a run on its host
  old_runs                the mark of runs that have ended, and their removal
  preflight               checks before a start
  file_limit              the limit of open files, on a host and of a process
  readiness               whether a server answers requests for its health, its models and a few prompts
  text_probe              asks a server the prompts of the probe, and judges its text or its vectors
  small_requests          HTTP requests that never raise, whatever the server answers
  log_lines               the log as clean lines in bounded memory
  log_reading             the log of a watched run, read from its host
  log_patterns            log lines whose cause and fix Workbench knows
  tracebacks              the tracebacks of a log: the error that was raised first, and its place in the engine's code
  exit_analysis           why a server has ended, by its log and the log of the kernel
  native_backtraces       the calls in a backtrace of native code, by gdb or glibc
  start_times             how long each phase of a start took, and what differs from the start before
  idle_start              a start in which no process does anything, told from a slow one by their CPU time and reading
  spinning                a start whose GPUs only spin, told from a slow one by the readings of the GPUs
  python_stacks           where the Python processes of a start that hangs stand, read with py-spy
  start_lines             what the log says while a server starts: phase, version, port
  explained_log           a whole log: known causes, first error, warnings without a known cause
  in_force                the requested settings of a server, compared with those that it actually uses
  metrics                 the engine's counters, from its Prometheus page
  engine_counters         the change of the engine's counters during one benchmark
  engine_rates            rates, shares and gauges of each second, from readings of the counters
  engine_probe            which engine is installed, and its version
  engine_flags            the flags of an installed engine, which flag_program prints
  external_servers        servers that Workbench did not start
  process_scan            the processes of this machine that look like an engine; process_command reads one
  tokenizer               prompt lengths, counted by the server
  model_files             weight bytes and config.json of a model
  model_inventory         the copies of models on a host, complete or not, and their hashes
  model_shipment          the files to send to another host, and those that are there already
  model_transfer          sends the files of a model, by rsync or through this machine
  hub_cache               where the cache of the Hugging Face hub is on a host
  model_disk              whether a start has enough disk space for its model and kernels
  state_disk              whether Workbench can write its runs and logs on a host
  model_download          downloads by the host's own program of the Hugging Face hub
  model_fingerprint       which model files a server was started with
  running_server_secrets  API keys and other secrets of a running server
  bounded_http            an HTTP client whose answers end in time and are bounded in size
  kept_connection         small requests that repeat all the time, over one connection

This file imports nothing, so that each module is loaded only when it is used.
"""

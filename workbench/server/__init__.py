"""Inference servers: find the installed engine, start a server, watch it until it is ready, follow its log, read its
counters, stop it, and adopt servers that already run.

  supervisor              the servers of one host: start, watch, adopt, stop
  watched_run             one run as the supervisor sees it
  run_state               computes the status of a run from its files and processes
  launchers/              servers that systemd, a container program or a scheduler runs
  launched_runs           runs whose server a launcher runs: stop, restart, and a new keeper if theirs is lost
  jobs                    the jobs of the user on a login host
  cluster_supervisor      servers whose ranks are runs on several hosts; ray_cluster starts Ray for them
  watched_rank            a rank with a watch beside it (rank_watch), which ends it if another rank has ended
  cluster_state           the status of such a server from those of its ranks; cluster_log is their log
  memory_guard            a process that stops a server before its host runs out of memory
  ready_proof             the first token, which proves that a server is ready
  run_directory           the files of a run on its host
  old_runs                the mark of runs that have ended, and their removal
  preflight               checks before a start
  readiness               whether a server answers: health, models, one token
  log_lines               the log as clean lines in bounded memory
  log_reading             the log of a watched run, read from its host
  log_patterns            known log lines with cause and fix
  start_lines             what the log says while a server starts: phase, version, port
  explained_log           a whole log: known lines, first error, warnings that are not known
  in_force                what was asked of a server, and what is in force in it
  metrics                 the engine's counters, from its Prometheus page
  engine_counters         the change of the engine's counters during one benchmark
  engine_rates            rates, shares and gauges of each second, from readings of the counters
  engine_probe            which engine is installed, and its version
  external_servers        servers that Workbench did not start
  tokenizer               prompt lengths, counted by the server
  model_files             weight bytes and config.json of a model
  model_inventory         the copies of models on a host, complete or not, and their hashes
  model_shipment          what a copy to another host consists of, and what is there already
  model_transfer          the bytes on their way, by rsync or through this machine
  model_download          downloads by the host's own program of the hub
  model_fingerprint       which model files a server was started with
  running_server_secrets  API keys and other secrets of a running server
  bounded_http            an HTTP client whose answers end in time and are bounded in size

This file imports nothing, so that each module is loaded only when it is used.
"""

"""The program of a simulated inference engine, with the command line of a real engine.

    python3 engine_server.py --engine vllm serve MODEL --tensor-parallel-size 2 …

Environment variables in addition to WORKBENCH_SIM_PROFILE and WORKBENCH_SIM_STATE (defaults in
parentheses):
    WORKBENCH_SIM_START_S     seconds from start to ready
    WORKBENCH_SIM_SPEEDUP     factor by which tokens come faster than simulated (1)
    WORKBENCH_SIM_NOISE       relative run-to-run and step-to-step noise (0.005; 0: none)
    WORKBENCH_SIM_DRIFT       relative size of slow waves in speed that all servers of the machine share (0)
    WORKBENCH_SIM_SEED        seed of the noise (the process id)
    WORKBENCH_SIM_VERSION     engine version to imitate (that of the newest flag catalog)
    WORKBENCH_SIM_RANKS       if set, a server with the flag nnodes is one process per node (ranks.py)
    WORKBENCH_SIM_FAULT       comma separated: exit_at_start, never_ready, crash_after_ready=S, unresponsive_after=S,
                              hang_on_term (SIGTERM during the start ends the workers but not the
                              main process), garbage (each token of an answer is "!"),
                              kld=NATS, broken_together, broken_second_turn (language_model.Damage),
                              stale_prompts, zeros (scored_reply.ScoredReply)
    WORKBENCH_SIM_PEER_LOST_S  seconds until a rank notices that another is lost (ranks.py)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from workbench.sim import engines, launch_options
from workbench.sim.flag_parser import ArgumentsRejected, Catalog


def main(argv: list[str] | None = None) -> int:
    """Run one server, or print the version or the help. Return the exit status. `argv` is --engine
    NAME, followed by the arguments of the real engine's program."""
    words = list(sys.argv[1:] if argv is None else argv)
    engine, words = engines.load_engine(words[1]), words[2:]
    version = os.environ.get("WORKBENCH_SIM_VERSION")
    answer = engine.version_text(words, Catalog(engine, version).version)
    if answer is not None:
        sys.stdout.write(answer + "\n")
        return 0
    try:
        words = engine.select_flag_arguments(words)
        if {"-h", "--help"} & set(words):
            names = sorted(Catalog(engine).spellings)
            sys.stdout.write(
                f"usage: {engine.program} [options]   (SIMULATED)\n" + "\n".join(names) + "\n"
            )
            return 0
        plan = launch_options.read_launch_options(engine, words, version)
    except ArgumentsRejected as rejected:
        sys.stderr.write(rejected.text + "\n")
        return rejected.code
    # takes 0.1 s to load, and every plan asks for the version
    from workbench.sim.engine_process import run_engine

    return run_engine(plan)


if __name__ == "__main__":
    sys.exit(main())

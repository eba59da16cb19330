"""The launcher `pbs`: a server as a batch job of PBS Pro, OpenPBS or Torque.

A job that signal n ended has the Exit_status 256 + n. The status is negative if PBS itself ended
the job: -29 for the walltime, -27 for the memory (JOB_EXEC_KILL_* in job.h of OpenPBS). `qstat -x`
includes ended jobs in PBS Pro, but selects XML output in Torque. A preempted job is suspended, or
put back into the queue; run_count counts its starts.
"""

from __future__ import annotations

from workbench.hosts.script_files import read_script
from workbench.model.job_request import JobRequest, pbs_words
from workbench.server.launchers.jobs import JobLauncher, Scheduler
from workbench.server.launchers.launcher import Launch, LaunchedServer

_SCHEDULER_FUNCTIONS = read_script(__file__, "pbs_functions.sh")

PBS = Scheduler(
    "pbs",
    programs=("qsub", "qstat", "qdel"),
    functions=_SCHEDULER_FUNCTIONS,
    nodes=("sh", "-c", "pbsnodes -a | sed -n 's/^ *Mom = //p'"),
)


class PbsLauncher(JobLauncher):
    """The launcher that runs servers as jobs of PBS."""

    scheduler = PBS

    def job_options(self, request: JobRequest) -> tuple[str, ...]:
        words = pbs_words(request)
        return (words.chunk, words.nodes, *words.others)

    def submit_command(self, request: JobRequest, run_dir: str) -> tuple[str, ...]:
        words = pbs_words(request)
        fixed = ("-S", "/bin/sh", "-j", "oe", "-o", f"{run_dir}/job.out")
        return ("qsub", *fixed, "-l", words.chunk, *words.others, f"{run_dir}/job.sh")

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        if not launched.handle:
            return ()
        return ("qrerun", launched.handle)


def launcher(name: str) -> PbsLauncher:
    return PbsLauncher()

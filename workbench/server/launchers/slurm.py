"""The launcher `slurm`: a server as a batch job of Slurm."""

from __future__ import annotations

from workbench.hosts.script_files import read_script
from workbench.model.job_request import JobRequest, slurm_words
from workbench.server.launchers.jobs import JobLauncher, Scheduler
from workbench.server.launchers.launcher import Launch, LaunchedServer

_SCHEDULER_FUNCTIONS = read_script(__file__, "slurm_functions.sh")

SLURM = Scheduler(
    "slurm",
    programs=("sbatch", "squeue", "scancel"),
    functions=_SCHEDULER_FUNCTIONS,
    nodes=("sinfo", "-h", "-N", "-o", "%N"),
    enters=True,
)


class SlurmLauncher(JobLauncher):
    """The launcher that runs servers as jobs of Slurm."""

    scheduler = SLURM

    def job_options(self, request: JobRequest) -> tuple[str, ...]:
        return slurm_words(request)

    def submit_command(self, request: JobRequest, run_dir: str) -> tuple[str, ...]:
        output = f"{run_dir}/job.out".replace("%", "%%")
        fixed = (f"--chdir={run_dir}", f"--output={output}", "--open-mode=append")
        return ("sbatch", *fixed, *slurm_words(request), f"{run_dir}/job.sh", run_dir)

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        if not launched.handle:
            return ()
        return ("scontrol", "requeue", launched.handle)


def launcher(name: str) -> SlurmLauncher:
    return SlurmLauncher()

"""The command `jobs`, which lists the user's jobs of a scheduler on a host."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json, print_line, print_message
from workbench.cli.registry import command
from workbench.model.job import ANY_SCHEDULER


def _format_time_left(seconds: int) -> str:
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 60} min {seconds % 60} s"


@command(
    "jobs",
    f"list your jobs of {ANY_SCHEDULER} on the host, also those that Workbench did not submit",
    examples=("workbench --host login jobs", "workbench --host login jobs --json"),
)
async def list_jobs(arguments: argparse.Namespace) -> int:
    from workbench.model.job import Job
    from workbench.server.jobs import read_jobs

    def job_line(job: Job) -> str:
        where, left, ours = job.node or "", "no time limit", f"not started by Workbench: {job.name}"
        if job.reason and not where:
            where = f"({job.reason})"
        if job.left_s is not None:
            left = f"{_format_time_left(job.left_s)} left"
        if job.run_id:
            ours = f"run {job.run_id}"
        what = f"{job.id:<10} {job.state:<10} {where:<16} {job.gpus or 'no GPUs':<8} {left:<14}"
        return f"{what} {job.queue or '':<10} {ours}"

    async with connect_session(arguments) as session:
        found = await read_jobs(session.host, await session.servers.supervisor.runs())
    if arguments.json:
        return print_json({"jobs": list(map(asdict, found))})
    if not found:
        print_message("no jobs of yours on this host")
    for job in found:
        print_line(job_line(job))
    return 0

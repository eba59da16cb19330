"""The commands of Ray, which connects the hosts of a vLLM server with `distributed-executor-backend
= ray`."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from workbench.model.plan import Command, LaunchPlan, Node

ROLE = "ray"
PORT = 6379
_TOTAL = re.compile(r"/\s*(?P<total>[\d.]+)\s+GPU\b")


def uses_ray(plan: LaunchPlan) -> bool:
    return plan.flag("distributed-executor-backend") == "ray"


def ray_executable_path(plan: LaunchPlan) -> str:
    """Return the path of the program `ray` that is installed beside the plan's engine; "ray" if the
    plan names no executable."""
    directory = posixpath.dirname(plan.executable[0]) if plan.executable else ""
    return posixpath.join(directory, "ray")


def make_ray_command(plan: LaunchPlan, node: Node) -> Command:
    """Return the command that runs Ray on a node: the head of Ray on rank 0, otherwise a worker
    that connects to the head. The command stays in the foreground, so Workbench can stop Ray
    together with the server."""
    own, head = node.flags["node-ip-address"], node.flags["address"]
    place = ["--head", "--port", str(PORT)] if node.rank == 0 else ["--address", f"{head}:{PORT}"]
    env = {**plan.env_texts, **node.env}
    if node.executable is not None:
        plan = replace(plan, executable=node.executable)
    argv = (ray_executable_path(plan), "start", *place, "--node-ip-address", str(own), "--block")
    return Command(argv, env, workdir=plan.workdir, port=PORT if node.rank == 0 else 0)


def make_ray_status_command(plan: LaunchPlan, head: str) -> tuple[str, ...]:
    """Return the command `ray status` for the Ray cluster whose head has the address `head`."""
    return (ray_executable_path(plan), "status", "--address", f"{head}:{PORT}")


def parse_total_gpu_count(status_output: str) -> int:
    """Parse the total number of GPUs from the output of `ray status`, such as 2 from " 0.0/2.0
    GPU"; 0 if the output has no GPUs."""
    found = _TOTAL.search(status_output)
    return int(float(found["total"])) if found else 0

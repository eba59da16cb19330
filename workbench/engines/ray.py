"""Ray, which connects the hosts of a vLLM server with `distributed-executor-backend = ray`."""

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


def program(plan: LaunchPlan) -> str:
    """Return the program `ray` of the environment from which the plan's engine is started."""
    directory = posixpath.dirname(plan.executable[0]) if plan.executable else ""
    return posixpath.join(directory, "ray")


def command(plan: LaunchPlan, node: Node) -> Command:
    """Return the command that keeps Ray running on a node. It stays in the foreground, so that it ends with its run."""
    own, head = node.flags["node-ip-address"], node.flags["address"]
    place = ["--head", "--port", str(PORT)] if node.rank == 0 else ["--address", f"{head}:{PORT}"]
    env = {**{e.name: str(e.value) for e in plan.env}, **node.env}
    if node.executable is not None:
        plan = replace(plan, executable=node.executable)
    argv = (program(plan), "start", *place, "--node-ip-address", str(own), "--block")
    return Command(argv, env, workdir=plan.workdir, port=PORT if node.rank == 0 else 0)


def status_command(plan: LaunchPlan, head: str) -> tuple[str, ...]:
    """Return the command that prints the resources of the Ray that `head` is the head of."""
    return (program(plan), "status", "--address", f"{head}:{PORT}")


def gpus_in(status: str) -> int:
    """Return the number of GPUs that `ray status` reports, as in " 0.0/2.0 GPU"; 0 if it names none."""
    found = _TOTAL.search(status)
    return int(float(found["total"])) if found else 0

"""Starts Ray on the nodes of a server. The server itself starts only after Ray has reported the
GPUs that the server needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from workbench.engines import ray
from workbench.hosts.base import Host
from workbench.model.errors import HostError, ServerError
from workbench.model.plan import LaunchPlan

RAY_START_TIMEOUT_S = 120.0  # for Ray to answer, and then for its GPUs to be there
_ASK_INTERVAL_S = 1.0
_STATUS_TIMEOUT_S = 30.0  # `ray status` loads its modules for seconds


async def count_ray_gpus(
    host: Host, plan: LaunchPlan, head: str, env: Mapping[str, str]
) -> int | None:
    """Return the number of GPUs in the Ray cluster whose head has the address `head`; None if no
    Ray answers there. `env` is the environment of the command that asks."""
    argv = ray.make_ray_status_command(plan, head)
    try:
        done = await host.run(argv, env=env, timeout_s=_STATUS_TIMEOUT_S)
    except HostError:
        return None
    if done.returncode != 0:
        return None
    return ray.parse_total_gpu_count(done.out)


async def wait_for_gpus(
    host: Host, plan: LaunchPlan, head: str, env: Mapping[str, str], wanted: int
) -> None:
    """Wait until the Ray cluster whose head has the address `head` has `wanted` GPUs; 0 waits until
    Ray answers. Raises ServerError after RAY_START_TIMEOUT_S."""
    deadline, found = time.monotonic() + RAY_START_TIMEOUT_S, None
    while time.monotonic() < deadline:
        found = await count_ray_gpus(host, plan, head, env)
        if found is not None and found >= wanted:
            return
        await asyncio.sleep(_ASK_INTERVAL_S)
    what = "does not answer"
    if found is not None:
        what = f"has {found} of the {wanted} GPUs of the plan"
    raise ServerError(
        f"Ray at {head}:{ray.PORT} {what} after {RAY_START_TIMEOUT_S:.0f} s",
        host=host.name,
        command=" ".join(ray.make_ray_status_command(plan, head)),
        next_step="check that the other nodes reach the address of Ray's head, and that no "
        "firewall is in the way",
    )


def too_few_gpus_error(
    host: Host, plan: LaunchPlan, head: str, found: int, wanted: int
) -> ServerError:
    """Return the error for a Ray cluster that runs already and has `found` GPUs, fewer than
    `wanted`, those that the plan needs."""
    return ServerError(
        f"the Ray cluster that runs at {head}:{ray.PORT} has {found} GPUs, and the plan needs "
        f"{wanted}",
        host=host.name,
        command=" ".join(ray.make_ray_status_command(plan, head)),
        next_step=f"run `ray start --address {head}:{ray.PORT}` on the other nodes, or stop this "
        "Ray "
        "with `ray stop`, so that Workbench starts Ray itself",
    )

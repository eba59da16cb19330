"""Whether a start has enough disk space: for a model that it downloads, else for its log and its
compiled kernels."""

from __future__ import annotations

from workbench import engines
from workbench.engines.model_facts import is_model_path
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_key_value_pairs, shell_argv
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.plan import Command, LaunchPlan
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server.hub_cache import hub_cache_and_home_values, hub_cache_script

_FREE_SPACE_SCRIPT = hub_cache_script(2) + read_script(__file__, "free_space.sh")
_MIN_FREE_KIB = 1 << 20  # log, compiled kernels
_MIN_FREE_FOR_MODEL_KIB = 20 << 20  # a model of 8 billion parameters in 16 bits takes 15 GiB
_TIMEOUT_S = 5.0


async def find_disk_problem(host: Host, plan: LaunchPlan, command: Command) -> Finding | None:
    """Return a warning if the disk with the hub's cache has too little free space for a start of
    `plan`, whose command is `command`. None if it has enough, or if that cannot be read."""
    folder = ""
    uses_hub = engines.get_engine(plan.engine).uses_hub  # the others start from files
    if uses_hub and plan.model and not is_model_path(plan.model):
        folder = f"models--{plan.model.replace('/', '--')}"
    try:
        done = await host.run(
            shell_argv(_FREE_SPACE_SCRIPT, folder, *hub_cache_and_home_values(command.env)),
            timeout_s=_TIMEOUT_S,
        )
    except WorkbenchError:
        return None
    facts = dict(parse_key_value_pairs(done.out))
    free = parse_whole_number(facts.get("free"))
    if free is None:
        return None
    needed, what = _MIN_FREE_KIB, "a start writes its log and compiled kernels"
    if folder and "cached" not in facts:
        sizes = plan.model_facts
        known = int(sizes.weight_bytes) >> 10 if sizes and sizes.weight_bytes else None
        needed = known or _MIN_FREE_FOR_MODEL_KIB
        what = f"{plan.model} is not there yet, and its weights take about {needed / 2**20:.0f} GiB"
        if known is None:
            what = f"{plan.model} is not there yet, and its size is unknown"
    if free >= needed:
        return None
    text = f"{free / 2**20:.1f} GiB are left on the disk of {facts.get('hub')}: {what}"
    fix = "delete models (`hf cache ls` lists them), or set HF_HOME to a directory on another disk"
    return Finding(Level.WARN, "host.disk", text, fix=fix, evidence=f"{free} KiB free")

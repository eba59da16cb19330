"""The command `fleet`: several hosts on one screen, or one reading of them as JSON."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.output import print_json, print_message
from workbench.cli.registry import command, option
from workbench.model.errors import InputError

if TYPE_CHECKING:
    from workbench.model.gpu import GpuSample
    from workbench.session.fleet.fleet import Fleet
    from workbench.session.fleet.state import FleetHost, FleetState

_LONGEST_S = 20.0
_GPU_FIELDS = (
    "index",
    "uuid",
    "gpu_util_pct",
    "power_w",
    "limit_w",
    "sm_mhz",
    "memory_mhz",
    "temperature_c",
    "memory_used_bytes",
    "memory_total_bytes",
    "event_reasons",
    "message",
)


@command(
    "fleet",
    "show up to 16 hosts on one screen: GPUs, power, servers and token rates",
    option(
        "hosts HOST",
        "names of hosts (default: all of hosts.toml, or without that file the ssh aliases)",
        nargs="*",
    ),
    option("--mouse", "let the mouse select text and rows"),
    examples=(
        "workbench fleet",
        "workbench fleet gpu-box-1 gpu-box-2",
        "workbench fleet sim:four-pcie sim:gb10-x2 --json",
    ),
)
def show_fleet(arguments: argparse.Namespace) -> int:
    from workbench.session.fleet.fleet import MAX_HOSTS, Fleet, fleet_host_names_and_labels

    if arguments.host or arguments.simulate or arguments.container:
        raise InputError(
            "`workbench fleet` takes its hosts as arguments",
            next_step="name the hosts after the command, as in `workbench fleet gpu-box "
            "sim:four-pcie proxmox/pct:101`",
        )
    names, labels = fleet_host_names_and_labels(arguments.hosts, arguments.cluster)
    if len(names) > MAX_HOSTS and not arguments.hosts:
        print_message(
            f"{len(names)} hosts are known: the first {MAX_HOSTS} are shown; name others to see "
            "them"
        )
        names = names[:MAX_HOSTS]
    found = Fleet(names, labels)
    if arguments.json:
        import asyncio

        return asyncio.run(_read_and_print_fleet(found))
    from workbench import tui

    return tui.run_fleet(found, mouse=True if arguments.mouse else None)


async def _read_and_print_fleet(fleet: Fleet) -> int:
    """Read all hosts once and print the readings as JSON. Return 0 if at least one host could be
    read, otherwise 1."""
    await fleet.open()
    try:
        state = await fleet.read_once(_LONGEST_S)
    finally:
        await fleet.close()
    print_json(_fleet_document(state))
    return 0 if any(host.is_live for host in state.hosts) else 1


def _fleet_document(state: FleetState) -> dict[str, Any]:
    from workbench.session.fleet.state import fleet_totals

    return {
        "simulated": state.simulated,
        "totals": asdict(fleet_totals(state.hosts)),
        "hosts": [_host_json(host) for host in state.hosts],
    }


def _host_json(host: FleetHost) -> dict[str, Any]:
    names, driver_version, age_s = {}, None, host.age_s
    if host.telemetry is not None:
        names = {info.index: info.name for info in host.telemetry.infos}
        driver_version = host.telemetry.driver.driver_version
    if age_s is not None:
        age_s = round(age_s, 1)
    return {
        "name": host.name,
        "label": host.label,
        "state": host.state,
        "link": host.link,
        "problem": host.problem,
        "simulated": host.simulated,
        "age_s": age_s,
        "latency_ms": host.latency_ms,
        "driver_version": driver_version,
        "power_w": host.power_w,
        "tok_s": host.tok_s,
        "gpus": [_gpu_json(gpu, names.get(gpu.index)) for gpu in host.gpus],
        "altered": list(map(asdict, host.altered)),
        "alerts": list(host.alerts),
        "servers": list(map(asdict, host.servers)),
    }


def _gpu_json(gpu: GpuSample, name: str | None) -> dict[str, Any]:
    from workbench.model.gpu_readings import IN_FLEET

    fields = (*_GPU_FIELDS, *(one.field for one in IN_FLEET))
    values = {field: getattr(gpu, field) for field in fields}
    return {"name": name, "state": str(gpu.state), **values, "absent": dict(gpu.absent)}

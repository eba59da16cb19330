"""The commands `hosts`, which list, show, add and check the hosts that the user can name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.open_session import create_session, read_selected_host_name
from workbench.cli.output import (
    format_finding,
    items_as_json,
    print_json,
    print_json_or_lines,
    print_line,
)
from workbench.cli.questions import can_prompt, prompt_for_login_secret
from workbench.cli.registry import command, option, repeatable_option, switch_option
from workbench.cli.shared_options import parse_name_value_pairs
from workbench.model.errors import InputError
from workbench.model.run_options import OPTIONS

if TYPE_CHECKING:
    from workbench.model.host_entry import HostEntry
    from workbench.session.hosts.check import HostCheck

_UNKNOWN = "`workbench hosts list` lists the names"


@command(
    "hosts list",
    "list the hosts that can be named: of hosts.toml and of the ssh configuration, and the "
    "clusters",
    examples=("workbench hosts list", "workbench hosts list --json"),
)
def list_hosts(arguments: argparse.Namespace) -> int:
    from workbench.session.hosts.names import known_non_simulated_hosts
    from workbench.store.hosts_file import HostsStore

    store = HostsStore()
    listed, clusters = known_non_simulated_hosts(), store.content.clusters
    if arguments.json:
        return print_json(
            {
                "file": str(store.path),
                "hosts": list(map(asdict, listed)),
                "clusters": list(map(asdict, clusters.values())),
                "findings": items_as_json(store.findings),
            }
        )
    width = max(len(host.name) for host in listed)
    for host in listed:
        parts = (f"{host.name:<{width}}", f"{host.source:<10}", host.way, host.label)
        print_line("  ".join(filter(None, parts)).rstrip())
    for cluster in clusters.values():
        nodes = ", ".join(node.host for node in cluster.nodes)
        print_line(f"cluster {cluster.name}: {nodes}  {cluster.label}".rstrip())
    return 0


@command(
    "hosts show",
    "show what hosts.toml says about a host, where the host is found, and what is used there",
    option("name NAME", "name of a host; `workbench hosts list` lists them"),
    examples=("workbench hosts show gpu-box",),
)
async def show_host(arguments: argparse.Namespace) -> int:
    from workbench.engines import registry
    from workbench.session.hosts.names import (
        is_host_name_resolvable,
        known_host_names,
        nearest_known_name,
    )
    from workbench.session.hosts.settings import HostSettings
    from workbench.store.config import ConfigStore
    from workbench.store.hosts_file import HostsStore

    name = arguments.name
    if name not in known_host_names() and not is_host_name_resolvable(name):
        other = nearest_known_name(name)
        step = _UNKNOWN
        if other:
            step = f"did you mean {other}? {_UNKNOWN}"
        raise InputError(f"there is no host {name!r}", next_step=step)
    arguments.host = name
    session = create_session(arguments)
    settings = HostSettings(session.core, ConfigStore())
    entry, address = settings.host_entry, await session.host.ssh_address()
    engines = {}
    for engine in registry.engine_names():
        if found := settings.engine_program_and_source_file(engine):
            program, file = found
            engines[engine] = {"program": program, "from": file}
    clusters = []
    for cluster in HostsStore().content.clusters.values():
        if name in {node.host for node in cluster.nodes}:
            clusters.append(cluster.name)
    document = {
        "name": name,
        "kind": session.host.kind,
        "address": address.text if address else None,
        "entry": _masked_entry_json(entry) if entry is not None else None,
        "engines": engines,
        "clusters": clusters,
    }
    return print_json_or_lines(
        arguments.json,
        document,
        [f"{label:<12}{text}" for label, text in _host_entry_labels_and_texts(document)],
    )


def _host_entry_labels_and_texts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    entry = document["entry"] or {}
    yield "host", f"{document['name']} ({document['kind']})  {entry.get('label', '')}".rstrip()
    if document["address"]:
        yield "address", document["address"]
    for label, key in (("ssh", "ssh"), ("container", "container"), ("start as", "run_as")):
        if entry.get(key):
            yield label, entry[key]
    if entry.get("run_options"):
        yield "options", " ".join(f"{name}={text}" for name, text in entry["run_options"].items())
    if entry.get("sudo") is not None:
        yield "sudo", "may be used" if entry["sudo"] else "is not used"
    for engine, found in document["engines"].items():
        yield "engine", f"{engine}: {found['program']} ({found['from']})"
    for variable, value in entry.get("env", {}).items():
        yield "environment", f"{variable}={value}"
    for place in entry.get("models", ()):
        yield "models", place
    if document["clusters"]:
        yield "clusters", ", ".join(document["clusters"])
    if not entry:
        yield "entry", f"none: workbench hosts add {document['name']} …"


@command(
    "hosts add",
    "write a host to hosts.toml; --container names the container on the machine",
    option("name NAME", "the host's name in commands, such as gpu-box"),
    option(
        "--ssh ADDRESS", "alias of the ssh configuration, HOST or USER@HOST (the host's own name)"
    ),
    option("--label TEXT", "text that the screen and lists show", default=""),
    repeatable_option(
        "--engine NAME=PROGRAM", "program that starts an engine there; repeatable", dest="engines"
    ),
    repeatable_option(
        "--env K=V", "environment variable of the servers there; repeatable", dest="envs"
    ),
    option(
        "--run-as WAY",
        f"how servers are started there: {', '.join(OPTIONS)}",
    ),
    repeatable_option(
        "--run-option K=V",
        "option of that way, such as partition=gpu; repeatable",
        dest="run_options",
    ),
    repeatable_option(
        "--models DIRECTORY", "directory with model files; repeatable", dest="models"
    ),
    switch_option("--sudo", "whether Workbench may use sudo there (if it is possible)"),
    option("--replace", "replace the entry if there is one"),
    examples=(
        "workbench hosts add spark-01 --ssh nvidia@spark-01.lan --label 'left Spark'",
        "workbench hosts add llm --ssh root@proxmox --container pct:101",
    ),
)
def add_host(arguments: argparse.Namespace) -> int:
    from workbench.model.host_entry import HostEntry
    from workbench.store.hosts_file import HostsStore

    store = HostsStore()
    entry = HostEntry(
        arguments.name,
        arguments.ssh,
        arguments.container,
        arguments.label,
        parse_name_value_pairs("--engine", arguments.engines),
        parse_name_value_pairs("--env", arguments.envs),
        arguments.run_as,
        parse_name_value_pairs("--run-option", arguments.run_options),
        tuple(arguments.models),
        arguments.sudo,
    )
    store.add(entry, replace=arguments.replace)
    text = (
        f"{entry.name} is written to {store.path}; check it with: workbench hosts check "
        f"{entry.name}"
    )
    return print_json_or_lines(
        arguments.json, {"file": str(store.path), "entry": _masked_entry_json(entry)}, text
    )


def _masked_entry_json(entry: HostEntry) -> dict[str, Any]:
    from workbench.model.secrets import mask_env

    return asdict(entry) | {"env": mask_env(entry.env)}


@command(
    "hosts check",
    "check whether hosts are reached and have what Workbench and their entries need",
    option("names NAME", "names of hosts (all of hosts.toml)", nargs="*"),
    option("--timeout S", "time limit for each host in seconds (30)", float, default=30.0),
    examples=("workbench hosts check", "workbench hosts check spark-01 spark-02"),
)
async def check_hosts(arguments: argparse.Namespace) -> int:
    """Check the hosts. Return 0 if all can be used, otherwise 1."""
    from workbench.session.hosts.check import (
        check_all_hosts,
        given_or_configured_names,
        usable_host_count_text,
    )
    from workbench.session.hosts.names import SIMULATED_PREFIX
    from workbench.session.session import Session
    from workbench.store.hosts_file import HostsStore

    if arguments.timeout <= 0:
        raise InputError("--timeout is not above 0", next_step="give seconds, such as --timeout 30")
    store, own = HostsStore(), read_selected_host_name(arguments)
    if own is None and arguments.simulate and not arguments.names:
        own = f"{SIMULATED_PREFIX}{arguments.simulate}"
    named = [*arguments.names]
    if own:
        named.append(own)
    names = given_or_configured_names(named, tuple(store.content.hosts))
    ask = prompt_for_login_secret if can_prompt(arguments) else None
    checks = await check_all_hosts(
        names, lambda name: Session.of_host(name, arguments.simulate), ask, arguments.timeout
    )
    if arguments.json:
        print_json(
            {
                "hosts": items_as_json(checks),
                "findings": items_as_json(store.findings),
            }
        )
    else:
        for check in checks:
            _print_host_check(check)
        print_line(usable_host_count_text(checks))
    return 0 if all(check.ok for check in checks) else 1


def _print_host_check(check: HostCheck) -> None:
    print_line(f"{check.name}: {'ok' if check.ok else 'cannot be used'}")
    for label, text in check.labels_and_texts:
        print_line(f"  {label:<9}{text}")
    for finding in check.findings:
        print_line(f"  {finding.level}: {format_finding(finding)}")

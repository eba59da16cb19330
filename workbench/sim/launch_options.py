"""The options of a simulated server, made from the command line of any engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.lazy_dataclass import dataclass
from workbench.sim import flag_parser, profiles
from workbench.sim.flag_parser import ArgumentsRejected, Catalog
from workbench.sim.model_sizes import SimulatedModel

if TYPE_CHECKING:
    from workbench.sim.engines.base import SimulatedEngine


@dataclass(frozen=True)
class LaunchOptions:
    """The server that a command line describes. `memory_share` is the share of each GPU's memory
    that weights and KV cache may fill.
    """

    engine: SimulatedEngine
    version: str
    flags: Mapping[str, Any]
    model: SimulatedModel
    served: tuple[str, ...]
    host: str
    port: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    eager: bool = False
    custom_all_reduce: bool = True
    max_len: int | None = None  # None: the model's own; -1: as much as fits
    max_sequences: int = 256
    batched_tokens: int = 8192
    memory_share: float = 0.92
    kv_tokens: int = 0  # size of the KV cache that a flag sets; 0: none does
    prefix_cache: bool = True
    metrics: bool = True
    stats_log: bool = True
    api_key: str | None = None
    on_gpu: bool = True
    headless: bool = False
    nodes: int = 1  # hosts over which the server is spread, each with a process of its own
    node_rank: int = 0
    master: str = ""  # address and port of rank 0, to which the other ranks connect
    embeds: bool = False  # serves /v1/embeddings and generates no text
    warnings: tuple[str, ...] = ()


def read_launch_options(
    engine: SimulatedEngine, argv: Sequence[str], version: str | None = None
) -> LaunchOptions:
    """Return the launch options for `argv`, the arguments after the program, and for the engine's
    configuration file if there is one; arguments count more than the file. Raises ArgumentsRejected
    if the engine's parser would reject them."""
    catalog = Catalog(engine, version)
    flags, positional = flag_parser.parse_flags(catalog, argv)
    path = flags.get("config")
    if isinstance(path, str):
        flags = {**_read_config(catalog, path), **flags}
    elif engine.default_config and Path(engine.default_config).is_file():
        flags = {**_read_config(catalog, engine.default_config), **flags}
    return engine.parse_launch(catalog, flags, positional)


def options_from_flags(
    catalog: Catalog,
    flags: Mapping[str, Any],
    model: SimulatedModel,
    *,
    served: tuple[str, ...],
    **options: Any,
) -> LaunchOptions:
    """Return the launch options of a server, given its parsed flags and its model. `served` are the
    names under which the model is served, and `options` the other fields. Host and port come from
    the flags; the default host is loopback for every engine, although some real engines listen on
    all addresses."""
    host = text_flag(flags, "host", "127.0.0.1")
    port = int_flag(flags, "port", catalog.engine.default_port)
    options = {**_multi_host_launch_fields(flags), **options}
    return LaunchOptions(
        catalog.engine, catalog.version, flags, model, served, host, port, **options
    )


def _multi_host_launch_fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of LaunchOptions for a server on several hosts with one process (rank) per
    host. {} if the server is one process, even if its simulated host has the GPUs of several hosts.
    """
    if not os.environ.get("WORKBENCH_SIM_RANKS"):
        return {}
    # this process uses the GPUs of all hosts
    if flags.get("distributed-executor-backend") == "ray":
        gpus = int_flag(flags, "tensor-parallel-size", 1)
        gpus *= int_flag(flags, "pipeline-parallel-size", 1)
        profile = profiles.get_profile(os.environ["WORKBENCH_SIM_PROFILE"])
        return {"nodes": max(1, gpus // profile.count)}
    nodes = int_flag(flags, "nnodes", 1)
    if nodes == 1:
        return {}
    rank = int_flag(flags, "node-rank")
    address = text_flag(flags, "master-addr", "127.0.0.1")
    master = f"{address}:{int_flag(flags, 'master-port', 29501)}"
    return {
        "nodes": nodes,
        "node_rank": rank,
        "master": text_flag(flags, "dist-init-addr", master),
        "headless": rank > 0,
    }


def int_flag(flags: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return the value of a flag as a number, or `default` if it is not set or 0."""
    return int(flags.get(name) or default)


def float_flag(flags: Mapping[str, Any], name: str, default: float) -> float:
    """Return the value of a flag as a number, or `default` if it is not set or 0."""
    return float(flags.get(name) or default)


def text_flag(flags: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return the value of a flag as text, or `default` if it is not set or empty."""
    return str(flags.get(name) or default)


def api_key_flag(flags: Mapping[str, Any], variable: str) -> str | None:
    """Return the first API key that the flag api-key sets, else the key in the environment variable
    `variable`; None if neither has one."""
    return flag_values_or_default(flags.get("api-key"), os.environ.get(variable, ""))[0] or None


def arguments_after_serve(engine: SimulatedEngine, arguments: list[str]) -> list[str]:
    """Return the words after "serve". Raises ArgumentsRejected for any other subcommand."""
    if arguments[:1] != ["serve"]:
        name = engine.name
        text = f"usage: {name} {{serve}} …\n{name}: error: this simulated engine knows `serve` only"
        raise ArgumentsRejected(text, 2)
    return arguments[1:]


def flag_values_or_default(value: Any, default: str) -> tuple[str, ...]:
    """Return the values of a flag that may be given several times, as texts. If it is not set,
    return (`default`,)."""
    if isinstance(value, list):
        return tuple(map(str, value)) or (default,)
    return (str(value),) if value else (default,)


def _read_config(catalog: Catalog, path: str) -> dict[str, Any]:
    try:
        return flag_parser.parse_config_flags(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise catalog.engine.rejection_error(
            f"argument --config: cannot read {path}: {error.strerror}"
        ) from None

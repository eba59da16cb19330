"""Rules across flags, variables, GPUs and versions. Each is a pure function from a situation to findings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

from workbench.engines.catalog import satisfies, version_key
from workbench.engines.memory_estimate import MemoryFit, fit
from workbench.engines.plan_context import Situation
from workbench.model.findings import Finding, Level
from workbench.model.secrets import is_secret_name

Rule = Callable[[Situation], Iterator[Finding]]
# Cards without NVLink to more than one neighbour: GeForce and RTX workstation cards, L and A series for servers.
_PCIE_ONLY = re.compile(r"\b(?:GeForce|RTX|L4|L40S?|A10G?|A2|A16|T4)\b")
_SECRET_FLAGS = ("api-key", "hf-token", "admin-api-key", "ssl-keyfile-password")
_PCIE_PATH = {"vllm": "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC", "sglang": "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"}


def cross_checks(here: Situation) -> Iterator[Finding]:
    for rule in (*COMMON, *BY_ENGINE[here.engine.name]):
        yield from rule(here)


def enough_gpus(here: Situation) -> Iterator[Finding]:
    if not here.gpus or here.value("distributed-executor-backend") == "ray":
        return
    need, have = here.gpus_needed, here.gpus_visible
    each = " on each node" if here.nodes > 1 else ""
    if need > have:
        text = f"needs {need} GPUs{each} (tensor x pipeline x data parallel), {have} visible"
        fix = "lower tensor-parallel-size or data-parallel-size, or show more in CUDA_VISIBLE_DEVICES"
        yield Finding(Level.ERROR, "gpus.too-few", text, "tensor-parallel-size", fix)
    elif need < have and here.engine.name in ("vllm", "sglang"):
        text = f"uses {need} of {have} GPUs{each}"
        more = f"data-parallel-size {have // need} would use {have // need * need}" if have >= 2 * need else None
        yield Finding(Level.INFO, "gpus.idle", text, fix=more)


def open_to_others(here: Situation) -> Iterator[Finding]:
    """A server without a key answers all who reach its port: on loopback every user of the host."""
    host = here.plan.flag("host")
    engine = here.engine
    key_flags = ("api-key", "api-key-file", "admin-api-key")
    has_key = any(here.plan.flag(f) for f in key_flags) or bool(engine.api_key_env and here.env(engine.api_key_env))
    if engine.name == "tabbyapi":
        has_key = not here.on("disable-auth")
    if has_key or str(host or "").startswith("/"):  # a Unix socket has permissions
        return
    how = f"set {engine.api_key_env} in the environment" if engine.api_key_env else "set an API key"
    if host is None or _is_loopback(str(host)):
        text = "has no API key: every user of the host can use the server through loopback"
        yield Finding(Level.HINT, "bind.local", text, "api-key", how)
        return
    text = f"listens on {host} without an API key: anyone who reaches the port can use it"
    yield Finding(Level.WARN, "bind.open", text, "host", f"set host to 127.0.0.1, or {how}")


def secrets_in_sight(here: Situation) -> Iterator[Finding]:
    for setting in here.plan.flags:
        if setting.name in _SECRET_FLAGS and setting.value not in (None, True):
            variable = here.engine.api_key_env if setting.name == "api-key" else None
            variable = "HF_TOKEN" if setting.name == "hf-token" else variable
            fix = f"unset it and set {variable} in the environment" if variable else None
            text = f"{setting.name} on the command line can be seen by every user of the host (ps)"
            yield Finding(Level.WARN, "secret.argv", text, setting.name, fix)
    for setting in here.plan.env:
        if is_secret_name(setting.name) and here.plan.preset_id and setting.origin == "preset":
            text = f"{setting.name} comes from the preset file: a key in a shared file is known to all who have it"
            yield Finding(Level.HINT, "secret.preset", text, setting.name, "make it a variable of the preset")


def version_in_range(here: Situation) -> Iterator[Finding]:
    wanted, have = here.plan.engine_versions, here.installed
    if have and not satisfies(have, wanted):
        text = f"the preset holds for {here.engine.title} {wanted}, installed is {have}"
        yield Finding(Level.WARN, "version.range", text)


def allocator(here: Situation) -> Iterator[Finding]:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = here.env(name)
        if not settings:
            continue
        expandable = re.search(r"expandable_segments:\s*true", settings, re.IGNORECASE)
        if expandable and "max_split_size_mb" in settings:
            text = "max_split_size_mb does nothing beside expandable_segments:True"
            yield Finding(Level.HINT, "allocator.split-size", text, name, "drop max_split_size_mb")
        if expandable and here.plan.flag("kv-transfer-config"):
            text = "vLLM refuses expandable_segments:True together with a KV connector"
            yield Finding(Level.ERROR, "allocator.kv-connector", text, name, f"unset {name}")


def unified_memory(here: Situation) -> Iterator[Finding]:
    flags = {"vllm": "gpu-memory-utilization", "sglang": "mem-fraction-static"}
    flag = flags.get(here.engine.name)
    if not flag or not any(g.unified_memory for g in here.gpus):
        return
    share = here.number(flag)
    if share is None or share > 0.85:
        stands = "is chosen at start" if share is None else f"is {share:g}"
        text = f"{flag} {stands}, but this GPU shares its memory with the system: what is taken here the system lacks"
        yield Finding(Level.WARN, "memory.unified", text, flag, f"set {flag} to 0.8 or less")


def memory(here: Situation) -> Iterator[Finding]:
    estimate = fit(here.plan, here.gpus)
    if isinstance(estimate, MemoryFit) and not estimate.fits:
        fix = "a smaller length, a quantized KV cache, more GPUs, or a smaller model"
        yield Finding(Level.WARN, "memory.too-large", f"{estimate.text} ({estimate.basis})", fix=fix)
    elif isinstance(estimate, MemoryFit):
        yield Finding(Level.INFO, "memory.estimate", estimate.text)


def metrics_on(here: Situation) -> Iterator[Finding]:
    flag = here.engine.metrics_flag
    if flag and not here.on(flag):
        text = f"without {flag} the engine gives no counters: running requests and tokens are not shown"
        yield Finding(Level.HINT, "metrics.off", text, flag, f"set {flag}")


def custom_all_reduce(here: Situation) -> Iterator[Finding]:
    if here.count("tensor-parallel-size") <= 2 or here.on("disable-custom-all-reduce"):
        return
    if here.gpus and all(_PCIE_ONLY.search(g.name) for g in here.gpus):
        text = "custom all-reduce switches itself off on more than two GPUs without NVLink; NCCL is used"
        fix = f"data parallel avoids the traffic; {_PCIE_PATH[here.engine.name]}=1 is an opt-in path in recent versions"
        yield Finding(Level.INFO, "parallel.all-reduce", text, "tensor-parallel-size", fix)


def eager(here: Situation) -> Iterator[Finding]:
    flag = "enforce-eager" if here.engine.name == "vllm" else "disable-cuda-graph"
    if here.on(flag):
        what = "torch.compile and CUDA graphs" if here.engine.name == "vllm" else "CUDA graphs"
        text = f"{flag} turns {what} off: starts faster, decodes slower"
        yield Finding(Level.HINT, "speed.eager", text, flag, f"unset {flag}")


def vllm_scheduling(here: Situation) -> Iterator[Finding]:
    version = version_key(here.installed or here.catalog.version)
    if here.plan.flag("async-scheduling") is True and version >= (0, 14):
        text = "async-scheduling is on by default since 0.14 where nothing is incompatible"
        yield Finding(Level.HINT, "flag.default", text, "async-scheduling", "unset it")
    if here.plan.flag("enable-log-requests") is False:
        text = "requests are not logged by default since 0.10.1"
        yield Finding(Level.HINT, "flag.default", text, "enable-log-requests", "unset it")
    tokens, sequences = here.number("max-num-batched-tokens"), here.number("max-num-seqs")
    if tokens and sequences and tokens < sequences:
        text = f"max-num-batched-tokens ({tokens:g}) is below max-num-seqs ({sequences:g}): vLLM refuses that"
        fix = f"set max-num-batched-tokens to {sequences:g} or more"
        yield Finding(Level.ERROR, "scheduler.tokens", text, "max-num-batched-tokens", fix)
    length = here.number("max-model-len")
    if here.value("enable-chunked-prefill") is False and tokens and length and tokens < length:
        text = f"without chunked prefill max-model-len ({length:g}) must fit max-num-batched-tokens ({tokens:g})"
        fix = "leave enable-chunked-prefill on, or raise max-num-batched-tokens"
        yield Finding(Level.ERROR, "scheduler.prefill", text, "max-num-batched-tokens", fix)


def vllm_log_statistics(here: Situation) -> Iterator[Finding]:
    servers = here.number("api-server-count")
    if here.count("data-parallel-size") > 1 and servers != 1 and not here.on("disable-log-stats"):
        text = "with several API servers the statistics lines leave the log; /metrics still has them per engine"
        yield Finding(Level.INFO, "log.no-stats", text, "data-parallel-size", "set api-server-count to 1")


def vllm_ray(here: Situation) -> Iterator[Finding]:
    version = version_key(here.installed or here.catalog.version)
    if here.value("distributed-executor-backend") == "ray" and version >= (0, 18):
        text = "vLLM does not install Ray since 0.18"
        fix = "install ray beside it, or use nnodes, node-rank and master-addr (since 0.11.1)"
        yield Finding(Level.HINT, "parallel.ray", text, "distributed-executor-backend", fix)


def vllm_module(here: Situation) -> Iterator[Finding]:
    if any("vllm.entrypoints.openai.api_server" in part for part in here.plan.executable):
        text = "python -m vllm.entrypoints.openai.api_server is deprecated since 0.29"
        yield Finding(Level.HINT, "executable.deprecated", text, fix="use vllm serve")


def tabbyapi_place(here: Situation) -> Iterator[Finding]:
    if not here.plan.workdir and not any(part.startswith("/") for part in here.plan.executable):
        text = "TabbyAPI is started in its own source directory, and none is given"
        yield Finding(Level.ERROR, "workdir.missing", text, fix="give the preset an engine workdir")
    if here.value("backend") == "exllamav2":
        text = "the ExLlamaV2 backend was removed on 2026-07-14"
        yield Finding(Level.WARN, "flag.removed", text, "backend", "use an EXL3 model, or TabbyAPI at commit 79126f9")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("/")  # a Unix socket


COMMON: tuple[Rule, ...] = (
    enough_gpus,
    open_to_others,
    secrets_in_sight,
    version_in_range,
    allocator,
    unified_memory,
    memory,
    metrics_on,
)
BY_ENGINE: dict[str, tuple[Rule, ...]] = {
    "vllm": (custom_all_reduce, eager, vllm_scheduling, vllm_log_statistics, vllm_ray, vllm_module),
    "sglang": (custom_all_reduce, eager),
    "tabbyapi": (tabbyapi_place,),
    "llamacpp": (),
}

"""What a simulated engine was asked to be: one `Launch` from the flags of any of the four engines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.sim import flag_parser, models
from workbench.sim.flag_parser import Catalog
from workbench.sim.models import SimulatedModel

DEFAULT_PORT = {"vllm": 8000, "sglang": 30000, "tabbyapi": 5000, "llamacpp": 8080}


@dataclass(frozen=True)
class Launch:
    """One server. `memory_share` is the part of each GPU's memory that weights and KV cache may fill."""

    engine: str
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
    kv_tokens: int | None = None  # asked for directly
    prefix_cache: bool = True
    metrics: bool = True
    stats_log: bool = True
    api_key: str | None = None
    on_gpu: bool = True
    headless: bool = False
    warnings: tuple[str, ...] = field(default=())


def read(engine: str, argv: Sequence[str], version: str | None = None) -> Launch:
    """The launch that `argv` (without the program's own words) asks for. Raises flagparse.Refused."""
    catalog = Catalog(engine, version)
    flags, positional = flag_parser.parse(catalog, argv)
    path = flags.get("config")
    if isinstance(path, str):
        flags = {**_config(catalog, path), **flags}
    elif engine == "tabbyapi" and Path("config.yml").is_file():
        flags = {**_config(catalog, "config.yml"), **flags}
    build = {"vllm": _vllm, "sglang": _sglang, "tabbyapi": _tabbyapi, "llamacpp": _llamacpp}[engine]
    return build(catalog, flags, positional)


def _config(catalog: Catalog, path: str) -> dict[str, Any]:
    try:
        return flag_parser.small_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        catalog.refuse(f"argument --config: cannot read {path}: {error.strerror}")
        return {}


def _address(engine: str, flags: Mapping[str, Any], host: str = "127.0.0.1") -> tuple[str, int]:
    """Loopback unless asked otherwise: the real vLLM and SGLang bind differently, a simulation need not be reached."""
    return str(flags.get("host") or host), int(flags.get("port") or DEFAULT_PORT[engine])


def _first(value: Any, default: str) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(map(str, value)) or (default,)
    return (str(value),) if value else (default,)


def _vllm(catalog: Catalog, flags: dict[str, Any], positional: list[str]) -> Launch:
    if len(positional) > 1:
        catalog.refuse("unrecognized arguments: " + " ".join(positional[1:]))
    name = str(positional[0] if positional else flags.get("model") or "Qwen/Qwen3-0.6B")
    kv = str(flags.get("kv-cache-dtype") or "auto")
    model = models.describe(
        name,
        quantization=flags.get("quantization"),
        dtype=str(flags.get("dtype") or "auto"),
        kv_fp8=kv.startswith("fp8"),
    )
    host, port = _address("vllm", flags)
    length = flags.get("max-model-len")
    compilation = flags.get("compilation-config") or {}
    no_graphs = isinstance(compilation, dict) and str(compilation.get("cudagraph_mode", "")).lower() == "none"
    dp = int(flags.get("data-parallel-size") or 1)
    servers = int(flags.get("api-server-count") or dp)
    return Launch(
        engine="vllm",
        version=catalog.version,
        flags=flags,
        model=model,
        served=_first(flags.get("served-model-name"), name),
        host=host,
        port=port,
        tp=int(flags.get("tensor-parallel-size") or 1),
        pp=int(flags.get("pipeline-parallel-size") or 1),
        dp=dp,
        eager=bool(flags.get("enforce-eager")) or no_graphs or flags.get("optimization-level") == "0",
        custom_all_reduce=not flags.get("disable-custom-all-reduce"),
        max_len=None if length is None else -1 if length in ("auto", -1) else int(length),
        max_sequences=int(flags.get("max-num-seqs") or 256),
        batched_tokens=int(flags.get("max-num-batched-tokens") or 8192),
        memory_share=float(flags.get("gpu-memory-utilization") or 0.92),
        prefix_cache=flags.get("enable-prefix-caching") is not False,
        stats_log=servers == 1 and not flags.get("disable-log-stats"),
        api_key=_first(flags.get("api-key"), os.environ.get("VLLM_API_KEY", ""))[0] or None,
        headless=bool(flags.get("headless")),
        warnings=tuple(
            f"Unknown vLLM environment variable detected: {n}" for n in flag_parser.unknown_variables(catalog)
        ),
    )


def _sglang(catalog: Catalog, flags: dict[str, Any], positional: list[str]) -> Launch:
    if positional:
        catalog.refuse("unrecognized arguments: " + " ".join(positional))
    name = flags.get("model-path")
    if not name:
        catalog.refuse("the following arguments are required: --model-path/--model")
    model = models.describe(
        str(name),
        quantization=flags.get("quantization"),
        dtype=str(flags.get("dtype") or "auto"),
        kv_fp8=str(flags.get("kv-cache-dtype") or "").startswith("fp8"),
    )
    host, port = _address("sglang", flags)
    chunk = int(flags.get("chunked-prefill-size") or 8192)
    return Launch(
        engine="sglang",
        version=catalog.version,
        flags=flags,
        model=model,
        served=_first(flags.get("served-model-name"), str(name)),
        host=host,
        port=port,
        tp=int(flags.get("tensor-parallel-size") or 1),
        pp=int(flags.get("pipeline-parallel-size") or 1),
        dp=int(flags.get("data-parallel-size") or 1),
        eager=bool(flags.get("disable-cuda-graph")),
        custom_all_reduce=not flags.get("disable-custom-all-reduce"),
        max_len=flags.get("context-length"),
        max_sequences=int(flags.get("max-running-requests") or 256),
        batched_tokens=chunk if chunk > 0 else 1 << 20,
        memory_share=float(flags.get("mem-fraction-static") or 0.88),
        kv_tokens=flags.get("max-total-tokens"),
        prefix_cache=not flags.get("disable-radix-cache"),
        metrics=bool(flags.get("enable-metrics")),
        api_key=flags.get("api-key"),
    )


def _llamacpp(catalog: Catalog, flags: dict[str, Any], positional: list[str]) -> Launch:
    if positional:
        catalog.refuse(f"invalid argument: {positional[0]}")
    name = flags.get("model") or flags.get("hf-repo") or os.environ.get("LLAMA_ARG_MODEL")
    if not name:
        catalog.refuse("--model or --hf-repo is needed")
    # a GGUF whose name does not tell is taken as the usual Q4_K_M
    quant = models.named_quantization(str(name))
    model = models.describe(str(name) if quant else f"{name}-Q4_K_M")
    host, port = _address("llamacpp", flags)
    slots = int(flags.get("parallel") or -1)
    layers = flags.get("n-gpu-layers")
    context = int(flags.get("ctx-size") or 0) or min(model.max_len, 32768)
    return Launch(
        engine="llamacpp",
        version=catalog.version,
        flags=flags,
        model=model,
        served=_first(flags.get("alias"), str(name)),
        host=host,
        port=port,
        max_len=context,
        max_sequences=slots if slots > 0 else 4,
        batched_tokens=int(flags.get("batch-size") or 2048),
        memory_share=0.97,
        kv_tokens=context,
        metrics=bool(flags.get("metrics")),
        api_key=_first(flags.get("api-key"), os.environ.get("LLAMA_API_KEY", ""))[0] or None,
        on_gpu=layers not in (0, "0"),
    )


def _tabbyapi(catalog: Catalog, flags: dict[str, Any], positional: list[str]) -> Launch:
    if positional:
        catalog.refuse("unrecognized arguments: " + " ".join(positional))
    name = str(flags.get("model-name") or "none")
    # a directory without a quantization in its name is taken as a 4-bit EXL3 checkpoint
    quant = models.named_quantization(name) or ("" if "bpw" in name.lower() else "awq")
    cache = str(flags.get("cache-mode") or "FP16")
    model = models.describe(name, quantization=quant or None, kv_fp8=cache.upper() != "FP16")
    host, port = _address("tabbyapi", flags)
    length = int(flags.get("max-seq-len") or 0) or min(model.max_len, 32768)
    return Launch(
        engine="tabbyapi",
        version=catalog.version,
        flags=flags,
        model=model,
        served=(name,),
        host=host,
        port=port,
        tp=_visible_count() if flags.get("tensor-parallel") else 1,
        max_len=length,
        max_sequences=int(flags.get("max-batch-size") or 16),
        batched_tokens=int(flags.get("chunk-size") or 2048),
        memory_share=0.98,
        kv_tokens=int(flags.get("cache-size") or 0) or length,
        metrics=False,
        api_key=None if flags.get("disable-auth") else _tabby_key(),
    )


def _visible_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([v for v in visible.split(",") if v.strip()]))
    from workbench.sim import driver_state

    return driver_state.from_environment().profile.count


def _tabby_key() -> str:
    """The key of api_tokens.yml in the working directory; made there at the first start, as the real one does."""
    path = Path("api_tokens.yml")
    if path.is_file():
        return str(flag_parser.small_yaml(path.read_text(encoding="utf-8")).get("api-key"))
    import secrets

    key, admin = secrets.token_hex(16), secrets.token_hex(16)
    path.write_text(f"api_key: {key}\nadmin_key: {admin}\n", encoding="utf-8")
    path.chmod(0o600)
    return key

"""llama.cpp's own HTTP server behind llama-server's command line, for tests: the xllamacpp wheel
brings no executable.

`install(directory)` puts an executable `llama-server` there that runs this file with this
interpreter. It takes the part of llama-server's surface that presets and tests use; any other
argument is an error, as it is there.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from argparse import BooleanOptionalAction
from importlib.metadata import version
from pathlib import Path

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
SPECULATION = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
AUTO, AUTO_SLOTS = -1, 4


def install(directory: Path) -> Path:
    """Install an executable `llama-server` in `directory`, which a test puts on its PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    launcher = directory / "llama-server"
    command = shlex.join([sys.executable, str(Path(__file__).resolve())])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    wheel = version("xllamacpp")
    build = wheel.rpartition(".")[2]
    arguments.add_argument(
        "--version", action="version", version=f"version: {build} (xllamacpp {wheel})"
    )
    arguments.add_argument("-m", "--model", required=True)
    arguments.add_argument("-a", "--alias")
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=8080)
    arguments.add_argument("-c", "--ctx-size", type=int, default=0)
    arguments.add_argument("-np", "--parallel", type=int, default=AUTO)
    arguments.add_argument("-kvu", "--kv-unified", action=BooleanOptionalAction)
    arguments.add_argument("-cb", "--cont-batching", action=BooleanOptionalAction, default=True)
    arguments.add_argument("-ngl", "--gpu-layers", "--n-gpu-layers", type=int, default=0)
    arguments.add_argument(
        "-t", "--threads", type=int, default=1
    )  # more of them spin on a busy machine
    arguments.add_argument("-b", "--batch-size", type=int, default=2048)
    arguments.add_argument("-ub", "--ubatch-size", type=int, default=512)
    arguments.add_argument("-fa", "--flash-attn", choices=FLASH_ATTENTION, default="auto")
    arguments.add_argument("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    arguments.add_argument("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16")
    arguments.add_argument("--spec-type", choices=SPECULATION, default="none")
    arguments.add_argument("--metrics", action="store_true")
    arguments.add_argument("--api-key")
    return arguments


def main() -> None:
    asked = parser().parse_args()
    import xllamacpp

    def cache_type(name: str) -> xllamacpp.ggml_type:
        return xllamacpp.ggml_type[f"GGML_TYPE_{name.upper()}"]

    def speculation(name: str) -> xllamacpp.common_speculative_type:
        word = name.upper().replace("-", "_")
        return xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{word}"]

    # as llama-server resolves them: slots that it chooses itself share one KV cache
    automatic = asked.parallel == AUTO
    unified = automatic if asked.kv_unified is None else asked.kv_unified

    params = xllamacpp.CommonParams()
    params.model.path = asked.model
    params.hostnames = [asked.host]
    params.port = asked.port
    params.n_ctx = asked.ctx_size
    params.n_parallel = AUTO_SLOTS if automatic else asked.parallel
    params.kv_unified = unified
    params.cont_batching = asked.cont_batching
    params.n_gpu_layers = asked.gpu_layers
    params.n_batch = asked.batch_size
    params.n_ubatch = asked.ubatch_size
    params.endpoint_metrics = asked.metrics
    params.cpuparams.n_threads = asked.threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type(FLASH_ATTENTION[asked.flash_attn])
    params.cache_type_k = cache_type(asked.cache_type_k)
    params.cache_type_v = cache_type(asked.cache_type_v)
    params.speculative.types = [speculation(asked.spec_type)]
    if asked.alias:
        params.model_alias = {asked.alias}
    if asked.api_key:
        params.api_keys = [asked.api_key]
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()

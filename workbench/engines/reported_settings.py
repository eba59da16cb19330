"""The places where a running engine reports the values of its settings: lines of its log, its
metrics page, and JSON answers of its server."""

from __future__ import annotations

import re

from workbench.model.lazy_dataclass import dataclass

_CUSTOM_ALL_REDUCE = (
    r"Custom ?all-?reduce(?:V2)? is disabled (?:because|due to) "
    r"(?P<why>[^.]*)",
    "off: {why}",
)
_NCCL_PATH = (r"NCCL INFO Channel \d+\S* : .* via (?P<value>\S+)", "{value}")
_NCCL_NETWORK = (r"NCCL INFO Using network (?P<value>\S+)", "network {value}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The places where an engine reports the value of one setting. They are tried in the order
    `info` (a JSON answer of the server), `metric` (the metrics page), `log` (a line of the log),
    until one has a value.

    `flag` is the flag that sets the setting, "" if there is none. `info` is a URL path and the
    place of the value in the answer, such as "/v1/models data.0.max_model_len"; the URL path
    "config" means the first of the engine's `config_paths` that exists. `metric` is the name of a
    metric and of the label that has the value, as in "vllm:cache_config_info{block_size}". `log`
    has pairs (regular expression, format string for its named groups). `log_product` matches a line
    of the log whose groups, which are numbers, have the value as their product.
    """

    name: str
    flag: str = ""
    info: str = ""
    metric: str = ""
    log: tuple[tuple[str, str], ...] = ()
    log_product: str = ""


VLLM = (
    Answer("version", info="/version version"),
    Answer("model name", "served-model-name", info="/v1/models data.0.id"),
    Answer(
        "max model length",
        "max-model-len",
        info="/v1/models data.0.max_model_len",
        log=((r"Using max model len (?P<value>\d+)", "{value}"),),
    ),
    Answer(
        "KV cache, tokens",
        metric="vllm:cache_config_info{kv_cache_size_tokens}",
        log=((r"KV cache size: (?P<value>[\d,]+) tokens", "{value}"),),
    ),
    Answer(
        "KV cache, blocks",
        "num-gpu-blocks-override",
        metric="vllm:cache_config_info{num_gpu_blocks}",
    ),
    Answer("KV block size", "block-size", metric="vllm:cache_config_info{block_size}"),
    Answer("KV cache type", "kv-cache-dtype", metric="vllm:cache_config_info{cache_dtype}"),
    Answer(
        "GPU memory share",
        "gpu-memory-utilization",
        metric="vllm:cache_config_info{gpu_memory_utilization}",
    ),
    Answer(
        "prefix caching",
        "enable-prefix-caching",
        metric="vllm:cache_config_info{enable_prefix_caching}",
    ),
    Answer(
        "full-length requests",
        log=(
            (
                r"Maximum concurrency for [\d,]+ tokens per request: "
                r"(?P<v>[\d.]+)",
                "{v}",
            ),
        ),
    ),
    Answer(
        "attention backend",
        "attention-backend",
        log=(
            (r"Using (?P<value>[A-Z][A-Z0-9_]+) attention backend", "{value}"),
            (r"Using (?:AttentionBackendEnum\.)?(?P<value>[A-Z][A-Z0-9_]+) backend\.", "{value}"),
            (r"Using (?P<value>[A-Za-z ]+) backend on V1 engine", "{value}"),
        ),
    ),
    Answer(
        "CUDA graphs",
        log=(
            (r"Capturing CUDA graphs.*100%.*?(?P<count>\d+)/(?P=count)\b", "{count} captured"),
            (
                r"Graph capturing finished in (?P<value>\d+ secs(?:, took [\d.]+ "
                r"GiB)?)",
                "captured in {value}",
            ),
            (r"Enforce eager set|Cudagraph is disabled under eager mode", "none: eager mode"),
        ),
    ),
    Answer(
        "weights loaded in",
        log=((r"Loading weights took (?P<value>[\d.]+) seconds", "{value} s"),),
    ),
    Answer(
        "compiled in",
        log=((r"torch\.compile (?:took|takes) (?P<value>[\d.]+) s in total", "{value} s"),),
    ),
    Answer("custom all-reduce", log=(_CUSTOM_ALL_REDUCE,)),
    Answer("NCCL version", log=((r"using nccl==(?P<value>[\d.]+)", "{value}"),)),
    Answer("NCCL transport", log=(_NCCL_PATH, _NCCL_NETWORK)),
    Answer(
        "quantization kernel",
        log=(
            (r"Using (?P<value>\w+Kernel) for \w+", "{value}"),
            (
                r"Using '?(?P<value>[\w-]+)'? (?:NvFp4|MXFP4|Mxfp4|Fp8|FP8|Unquantized)\w*(?: "
                r"MoE)? "
                r"backend",
                "{value}",
            ),
            (r"Weight-only (?P<kind>FP\d) compression will be used", "Marlin, weight-only {kind}"),
        ),
    ),
)

SGLANG = (
    Answer("version", info="config version"),
    Answer("model name", "served-model-name", info="/v1/models data.0.id"),
    Answer(
        "max model length",
        "context-length",
        info="/v1/models data.0.max_model_len",
        log=((r"\bcontext_len=(?P<value>\d+)", "{value}"),),
    ),
    Answer(
        "KV cache, tokens",
        "max-total-tokens",
        info="config max_total_num_tokens",
        metric="sglang:max_total_num_tokens",
        log=(
            (r"max_total_num_tokens=(?P<value>\d+)", "{value}"),
            (
                r"#tokens: (?P<value>\d+), K "
                r"size",
                "{value}",
            ),
        ),
    ),
    Answer(
        "KV cache type",
        "kv-cache-dtype",
        log=(
            (
                r"KV Cache is allocated\. dtype: "
                r"(?P<value>[\w.]+)",
                "{value}",
            ),
        ),
    ),
    Answer(
        "requests at once",
        "max-running-requests",
        info="config internal_states.0.effective_max_running_requests_per_dp",
        log=((r"max_running_requests=(?P<value>\d+)", "{value}"),),
    ),
    Answer("KV cache, GiB", info="config internal_states.0.memory_usage.kvcache"),
    Answer("weights, GiB", info="config internal_states.0.memory_usage.weight"),
    Answer(
        "attention backend",
        "attention-backend",
        info="config attention_backend",
        log=((r"Use (?P<value>\w+) backend by default", "{value}"),),
    ),
    Answer(
        "CUDA graphs",
        log=(
            (r"Capture .*graph end\..*?elapsed=(?P<value>[\d.]+) s", "captured in {value} s"),
            (r"Cuda graph is disabled because (?:of )?(?P<why>.*)", "none: {why}"),
            (r"'disable_cuda_graph': True|disable_cuda_graph=True", "none: disable-cuda-graph"),
        ),
    ),
    Answer(
        "weights loaded in",
        log=((r"Load weight end\. elapsed=(?P<value>[\d.]+) s", "{value} s"),),
    ),
    Answer("custom all-reduce", log=(_CUSTOM_ALL_REDUCE,)),
    Answer("NCCL version", log=((r"using nccl==(?P<value>[\d.]+)", "{value}"),)),
    Answer("NCCL transport", log=(_NCCL_PATH, _NCCL_NETWORK)),
    Answer(
        "quantization kernel",
        log=(
            (
                r"Weight-only (?P<kind>FP\d) compression will be "
                r"used",
                "Marlin, {kind}",
            ),
        ),
    ),
)

LLAMACPP = (
    Answer("version", info="/props build_info"),
    Answer("model file", "model", info="/props model_path"),
    Answer("model name", "alias", info="/v1/models data.0.id"),
    Answer(
        "context, tokens",
        "ctx-size",
        log=((r"n_ctx_slot = (?P<value>\d{1,9}), kv_unified = 'true'", "{value}"),),
        log_product=r"n_slots = (\d{1,6}), n_ctx_slot = (\d{1,9}), kv_unified = 'false'",
    ),
    Answer("context of a slot, tokens", info="/props default_generation_settings.n_ctx"),
    Answer(
        "slots",
        "parallel",
        info="/props total_slots",
        log=(
            (
                r"n_slots = "
                r"(?P<value>\d+)",
                "{value}",
            ),
        ),
    ),
    Answer("threads", "threads", log=((r"n_threads = (?P<value>\d+)", "{value}"),)),
    Answer(
        "layers on the GPU",
        log=((r"offloaded (?P<done>\d+)/(?P<all>\d+) layers to GPU", "{done} of {all}"),),
    ),
    Answer("flash attention", "flash-attn", log=((r"flash_attn\s*= (?P<value>\w+)", "{value}"),)),
    Answer("KV cache", log=((r"KV (?:buffer|self) size\s*=\s*(?P<value>[\d.]+ MiB)", "{value}"),)),
)

TABBYAPI = (
    Answer("model name", info="/v1/model id"),
    Answer("max model length", "max-seq-len", info="/v1/model parameters.max_seq_len"),
    Answer("KV cache, tokens", "cache-size", info="/v1/model parameters.cache_size"),
    Answer("KV cache type", "cache-mode", info="/v1/model parameters.cache_mode"),
    Answer("requests at once", "max-batch-size", info="/v1/model parameters.max_batch_size"),
    Answer("chunk size", "chunk-size", info="/v1/model parameters.chunk_size"),
    Answer("prompt template", "prompt-template", info="/v1/model parameters.prompt_template"),
    Answer("draft model", "draft-model-name", info="/v1/model parameters.draft.id"),
    Answer(
        "draft KV cache type",
        "draft-cache-mode",
        info="/v1/model parameters.draft.parameters.cache_mode",
    ),
)

_KEY = re.compile(r"""\s*(?:'(?P<quoted>\w+)'\s*:|(?P<bare>\w+)\s*=)\s*""")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_MOST_SETTINGS = 2000


def parse_logged_settings(text: str) -> dict[str, str]:
    """Return the settings in a configuration that an engine has logged: "a=1, b='x'" or "{'a': 1,
    'b': 'x'}". If the end of the text is missing, so is the last, incomplete setting. Names have
    dashes, as flags have; quotation marks around values are removed."""
    found: dict[str, str] = {}
    at = 1 if text.startswith("{") else 0
    while len(found) < _MOST_SETTINGS and (key := _KEY.match(text, at)):
        end = _find_logged_value_end(text, key.end())
        if end is None:
            break  # the value is not complete
        value = text[key.end() : end].strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[(key["quoted"] or key["bare"]).replace("_", "-")] = value[1:-1] if quoted else value
        at = end + 1
    return found


def _find_logged_value_end(text: str, start: int) -> int | None:
    """Return the index in `text` at which the value that begins at index `start` ends: that of a
    comma, of a closing bracket, or the end of the text. None if a bracket or a quotation mark in
    the value is not closed."""
    open_until: list[str] = []
    quote = ""
    for index in range(start, len(text)):
        char = text[index]
        if quote:
            quote = "" if char == quote and text[index - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in _PAIRS:
            open_until.append(_PAIRS[char])
        elif open_until and char == open_until[-1]:
            open_until.pop()
        elif not open_until and char in ",)]}":
            return index
    return None if quote or open_until else len(text)

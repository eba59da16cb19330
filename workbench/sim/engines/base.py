"""The interface of a simulated engine, with the behaviour that most engines share.

Texts imitate the real engines word for word: do not improve them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.sim.flag_parser import ArgumentsRejected, Catalog
from workbench.sim.launch_options import text_flag
from workbench.sim.memory_fit import GIB, Failure, Fit, GpuMemory
from workbench.sim.startup import StartupPhase

if TYPE_CHECKING:
    from workbench.sim.driver_state import SimState
    from workbench.sim.engine_log import EngineLog
    from workbench.sim.engine_metrics import Metrics
    from workbench.sim.engine_process import EngineServer
    from workbench.sim.http_server import Request
    from workbench.sim.launch_options import LaunchOptions
    from workbench.sim.openai_api import Api, ApiError, ApiReply
    from workbench.sim.scheduler import Replica
    from workbench.sim.scheduler import Sequence as RequestSequence


# Mean Kullback-Leibler divergence from FP8 weights that 4-bit weights of a large model have
# (INT4-AWQ 0.0241, NVFP4 0.0353), and an assumption for an FP8 KV cache.
DIVERGENCE_4_BIT, DIVERGENCE_FP8_CACHE = 0.0241, 0.002
_FEW_BITS = 6.0


class SimulatedEngine:
    """A simulated engine: its log texts, error messages and limits, and the parts of its behaviour
    that differ between engines. Instances have no state."""

    name: str
    program: str  # as the usage text of the real parser names it
    default_port: int
    default_config: str | None = None  # configuration file of the working directory
    # reached share of the streamed memory bandwidth, relative to the best engine
    bandwidth_share = 1.0
    graphs_gib = 0.0  # GPU memory of captured graphs
    # process title of the worker; None: the server itself uses the GPU
    worker_name: str | None = None
    # "follow": the worker ends with the server; "orphan": it outlives a killed server
    worker_manner = "follow"
    port_attempts = 1  # ports to try, counting upwards from the requested one
    binds_first = False  # binds its port before the model is loaded, without listening
    listens_while_loading = False  # answers 503 until it is ready
    # requests per connection, idle seconds
    connection_limits: tuple[int | None, float | None] = (None, None)
    checks_model = False  # rejects requests for a model that is not served
    # rejects more output tokens than there is room for, instead of generating fewer
    rejects_long_requests = False
    tokenizes_messages = True
    tokenize_path, tokenize_field = "/tokenize", "prompt"
    # finish_reason comes with the last content instead of in a chunk of its own
    finish_on_content = False

    # -- command line ------------------------------------------------------------------------------

    def version_text(self, words: Sequence[str], version: str) -> str | None:
        """Return the text that the program prints if the arguments `words` only ask for its
        version. None for any other arguments."""
        return None

    def select_flag_arguments(self, arguments: list[str]) -> list[str]:
        """Return the flags among `arguments`, the arguments of the program. Raises
        ArgumentsRejected if the program would reject them, for example because of an unknown
        subcommand."""
        return arguments

    def normalize_option(self, option: str) -> str:
        """Return a command-line option in the spelling that the flag catalog uses."""
        return option

    # any unambiguous beginning of an option is valid, as in plain argparse
    accepts_prefixes = False
    dotted_fields = False  # "--config.key value" sets a key of a JSON flag

    def negated_options(self, flag: Mapping[str, Any]) -> set[str]:
        """Return the command-line options that turn the flag off, such as --no-x."""
        return {flag["negation"]} if flag.get("negation") else set()

    def flag_missing_from_catalog(self, option: str) -> dict[str, Any] | None:
        """Return the definition of the flag for an option that the engine accepts although its flag
        catalog lacks it. None for any other option."""
        return None

    def reject_unknown_argument(self, argument: str) -> None:
        """Raise ArgumentsRejected if this engine's parser stops at the first unknown argument.
        Otherwise do nothing, because the parser then reports all unknown arguments together."""

    def rejection_error(self, why: str) -> ArgumentsRejected:
        """Return the error for a command line that the engine's parser rejects because of `why`."""
        return ArgumentsRejected(
            f"usage: {self.program} [-h] [options]\n{self.program}: error: {why}", 2
        )

    def missing_value_error(
        self, option: str, title: str, takes_several: bool
    ) -> ArgumentsRejected:
        """Return the error for an option without a value. `title` has all spellings of the option's
        flag, and `takes_several` says whether the flag takes several values."""
        return self.rejection_error(
            f"argument {title}: expected {'at least one' if takes_several else 'one'} argument"
        )

    def invalid_value_error(self, title: str, kind: str, text: str) -> ArgumentsRejected:
        """Return the error for an option whose value `text` is not of the type `kind`. `title` has
        all spellings of the option's flag."""
        return self.rejection_error(f"argument {title}: invalid {kind} value: {text!r}")

    @abstractmethod
    def parse_launch(
        self, catalog: Catalog, flags: dict[str, Any], positional: list[str]
    ) -> LaunchOptions:
        """Return the launch options that the parsed `flags` and the arguments that are no flags
        (`positional`) describe. Raises ArgumentsRejected if a flag is invalid."""

    # -- memory ------------------------------------------------------------------------------------

    def model_path(self, launch: LaunchOptions) -> str | None:
        """Return the path of the directory from which the model is loaded. None if the flags name
        the model by its id."""
        name = launch.model.id
        return name if name.startswith(("/", "./", "../", "~")) else None

    def missing_model_failure(self, path: str) -> Failure:
        """Return the failure for a model path that does not exist."""
        return Failure(f"FileNotFoundError: Model path {path} does not exist.")

    def gpus_per_replica(
        self, launch: LaunchOptions, state: SimState, gpus: tuple[int, ...]
    ) -> int:
        """Return the number of GPUs of this host over which one replica of the model is split."""
        return -(-launch.tp * launch.pp // launch.nodes)

    def too_few_gpus_failure(self, needed: int, have: int) -> Failure:
        """Return the failure of an engine that needs more GPUs than are visible."""
        return Failure("torch.AcceleratorError: CUDA error: invalid device ordinal")

    def kv_cache_bytes(self, launch: LaunchOptions, memory: GpuMemory) -> float:
        """Return the size of the KV cache in bytes per GPU. Raises Failure if weights and cache do
        not fit."""
        if memory.weights > memory.free:
            raise self.out_of_memory_failure(memory.weights, memory)
        cache = self.requested_kv_cache_bytes(launch, memory)
        if cache <= 0:
            raise Failure(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
            )
        if memory.weights + cache > memory.free:
            raise self.out_of_memory_failure(memory.weights + cache, memory)
        return cache

    def requested_kv_cache_bytes(self, launch: LaunchOptions, memory: GpuMemory) -> float:
        """Return the size of the KV cache that the flags request, in bytes per GPU."""
        return launch.kv_tokens * memory.per_token

    def require_context_fits_cache(
        self, max_len: int, kv_cache_bytes: float, memory: GpuMemory
    ) -> None:
        """Raise Failure if the KV cache of `kv_cache_bytes` bytes per GPU cannot contain one
        sequence of `max_len` tokens."""

    def out_of_memory_failure(self, wanted: float, memory: GpuMemory) -> Failure:
        """Return the failure of an engine that runs out of GPU memory because it needs `wanted`
        bytes in total."""
        more = max(wanted - memory.free, 64 << 20) / GIB
        left = max(0.0, memory.free) % (256 << 20) / (1 << 20)
        return Failure(
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {more:.2f} GiB. GPU 0 "
            "has a total capacity "
            f"of {memory.total / GIB:.2f} GiB of which {left:.2f} MiB is free.",
        )

    # -- log ---------------------------------------------------------------------------------------

    @abstractmethod
    def log_line(
        self, log: EngineLog, text: str, *, source: str, process: str, pid: int, level: str
    ) -> str:
        """Return a log line in the engine's format."""

    def access_line(self, uvicorn_text: str) -> str | None:
        """Return the engine's log line for one request. `uvicorn_text` is what uvicorn, the HTTP
        server, logs for it. None if the engine logs no requests."""
        return None

    def lines_before_loading(self, launch: LaunchOptions) -> Iterator[StartupPhase]:
        """Yield the engine's log lines up to the moment at which it reads the model and allocates
        memory."""
        return iter(())

    @abstractmethod
    def lines_while_loading(
        self, launch: LaunchOptions, fit: Fit, workers: list[int], address: str
    ) -> Iterator[StartupPhase]:
        """Yield the engine's log lines from the reading of the model until the server is ready.
        `workers` are the process ids of the workers, and `address` is the URL at which the server
        listens."""

    @abstractmethod
    def ready_line(self, address: str) -> StartupPhase:
        """Return the log line with which the engine reports that it is ready. `address` is the URL
        at which it listens."""

    def fails_in_worker(self, failure: Failure) -> bool:
        """Return whether this failure occurs in a worker process. The server then starts its
        workers before it fails."""
        return False

    def log_failure(self, log: EngineLog, failure: Failure, workers: list[int]) -> None:
        """Write the last log lines of an engine that cannot start. `workers` are the process ids of
        its workers."""
        for line in failure.lines:
            log.write_line(line, level="ERROR")

    @abstractmethod
    def log_port_in_use(self, log: EngineLog, host: str, port: int, error: OSError) -> None:
        """Write the log lines of an engine whose port is in use."""

    def log_stop(self, log: EngineLog) -> None:
        """Write the log line of an engine that is being stopped."""
        log.write_line("Shutting down")

    def log_throughput_statistics(
        self,
        server: EngineServer,
        token_counts_before: Sequence[tuple[int, int]],
        seconds: float,
        busy: bool,
    ) -> None:
        """Write the engine's periodic statistics lines, for the last `seconds` seconds.
        `token_counts_before` has the (prompt tokens, output tokens) of each replica of the model at
        the start of this time. `busy` says whether requests are in progress."""

    def enable_step_logging(self, server: EngineServer, replica: Replica) -> None:
        """Make the engine write log lines about the steps of a replica of the model, if the real
        engine does so."""

    # -- log probabilities
    # ---------------------------------------------------------------------------

    # what a known defect does to them with speculation: "stale_prompts", "zeros" or nothing
    speculation_defect = ""
    cache_type_flags: tuple[str, ...] = ("kv-cache-dtype",)
    usage_unasked = True  # in an answer that is no stream

    def uses_defective_speculation(self, launch: LaunchOptions) -> bool:
        """Return whether the flags turn on a form of speculation that has the engine's
        `speculation_defect`."""
        return False

    def quantization_kl_divergence(self, launch: LaunchOptions) -> float:
        """Return the Kullback-Leibler divergence of the answers of this server from those with
        8-bit weights and a 16-bit KV cache, in nats per token. For 4-bit weights it is as others
        measured it; the part of an 8-bit or smaller KV cache is an assumption."""
        bits = 8 * launch.model.weight_bytes / launch.model.parameters
        divergence = 0.0
        if bits < _FEW_BITS:
            divergence += DIVERGENCE_4_BIT
        kinds = [text_flag(launch.flags, name) for name in self.cache_type_flags]
        if any(kind.startswith(("fp8", "q8", "q4", "nvfp4")) for kind in kinds):
            divergence += DIVERGENCE_FP8_CACHE
        return divergence

    def asks_for_log_probabilities(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request to /v1/completions asks for log probabilities."""
        return bool(body.get("logprobs")) and not body.get("stream")

    def reply_with_log_probabilities(
        self, api: Api, request: Request, body: Mapping[str, Any]
    ) -> None:
        """Answer a request to /v1/completions that asks for log probabilities."""

    # -- API ---------------------------------------------------------------------------------------

    def extra_routes(self, api: Api) -> dict[tuple[str, str], Callable[[Request], None]]:
        """Return the handlers of the engine's own endpoints, by (method, path)."""
        return {}

    def metric_lines(self, metrics: Metrics) -> list[str]:
        """Return the lines of the body of /metrics, with the metric names of this engine; [] if it
        has no metrics."""
        return []

    def health_body(self, ready: bool) -> Any:
        """Return the body of the reply to GET /health."""
        return b""

    def token_count_body(self, ids: list[int], max_len: int) -> dict[str, Any]:
        """Return the body of the reply of the endpoint that counts tokens. `ids` are the token ids
        of the text, and `max_len` is the longest context of the model in tokens."""
        return {"count": len(ids), "max_model_len": max_len, "tokens": ids}

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """Return the body of an error reply."""
        if error.is_unknown_path:
            return {"detail": str(error)}
        return {
            "error": {
                "message": str(error),
                "type": error.kind,
                "param": error.param,
                "code": error.status,
            }
        }

    def extra_usage_fields(self, sequence: RequestSequence) -> dict[str, Any]:
        """Return the fields of "usage" that only this engine has."""
        return {}

    def extra_reply_fields(self, sequence: RequestSequence) -> dict[str, Any]:
        """Return the top-level fields of a finished reply that only this engine has."""
        return {}

    def stream_end_events_text(self, reply: ApiReply, sequence: RequestSequence) -> str:
        """Return the last server-sent events of a streamed reply as one text: finish_reason, usage
        if requested, and [DONE]. finish_reason is left out if the last content had it."""
        fields, text = self.extra_reply_fields(sequence), ""
        if not self.finish_on_content:
            text += reply.finish_event_text({} if reply.usage_chunk else fields)
        if reply.usage_chunk:
            text += reply.event_text(
                {"choices": [], "usage": reply.make_usage_object(sequence), **fields}
            )
        return text + "data: [DONE]\n\n"

    def log_finished_request(self, api: Api, reply_id: str, sequence: RequestSequence) -> None:
        """Write the engine's log lines about one finished request."""

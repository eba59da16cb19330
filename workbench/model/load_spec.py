"""The workload of a benchmark, with the declaration of each option that the user can set
(model/declared_options.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from workbench.model.declared_options import (
    AIPERF,
    CLIENT,
    DIGEST,
    GUIDELLM,
    LABEL,
    SEARCH,
    SEED,
    SHAPE,
    SIZE,
    STREAMS,
    TRACE,
    CheckedText,
    Choice,
    Command,
    Constant,
    Factor,
    Fraction,
    JsonObject,
    Number,
    OptionalWhole,
    Switch,
    Whole,
    option_metadata,
    options_declared_in,
)
from workbench.model.lazy_dataclass import dataclass

PROFILES = ("quick", "single-stream", "batch", "long-prompt", "document")  # bench/profiles.py
_SECONDS = Number("seconds")
MOST_STREAMS = 2**16  # each has a connection
_TOKENS = Whole(most=20_000_000)  # more than any model's context
# of real text: an excerpt had 0.73 or more with cl100k, o200k and the tokenizers of two other
# vendors
_LEAST_TOKENS_PER_PIECE = 0.6


def _require_valid_slo(text: str) -> None:
    from workbench.model.slo import parse_slo  # most commands that list the options parse no SLO

    parse_slo(text)


def _require_valid_think_time(text: str) -> None:
    from workbench.model.think_time import parse_think_time

    parse_think_time(text)


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """The workload of one benchmark run. Without `rate`, each of `concurrency` streams sends its
    next request when the previous one has ended; with `rate`, requests start at that rate. The
    worker process, which sends the requests, reads the workload as JSON from stdin.

    The options of the command line and the fields of the form have the order of the fields here."""

    url: str  # base, e.g. http://127.0.0.1:8000 (the worker adds /v1/chat/completions)
    model: str = field(
        metadata=option_metadata(
            "--model NAME",
            "model name to request (default: the first that the server lists)",
            CLIENT,
            is_work=False,
        )
    )
    concurrency: int = field(
        default=8,
        metadata=option_metadata(
            "--concurrency N",
            "number of requests in flight at the same time",
            STREAMS,
            Whole(most=MOST_STREAMS),
            label="streams at once",
            hint="1: a single reader",
            always_written=True,
            short="c",
        ),
    )
    requests: int = field(
        default=64,
        metadata=option_metadata(
            "--requests N",
            "requests to measure (default: 8 per stream; 30 s of a --rate)",
            SIZE,
            Whole(),
            label="requests",
            hint="without the warm-up",
            in_preset=True,
            preset_default=32,
            always_written=True,
            decided_by=(TRACE,),
            left_out_of=(DIGEST,),
            short="n",
        ),
    )
    max_tokens: int = field(
        default=128,
        metadata=option_metadata(
            "--max-tokens N",
            "output tokens of each request",
            SIZE,
            _TOKENS,
            label="output tokens each",
            hint="forced where possible",
            in_preset=True,
            always_written=True,
            decided_by=(TRACE,),
            short="out",
        ),
    )
    input_tokens: int = field(  # approximate prompt length
        default=128,
        metadata=option_metadata(
            "--input-tokens N",
            "prompt tokens of each request",
            SIZE,
            _TOKENS,
            label="prompt tokens each",
            hint="approximately",
            in_preset=True,
            always_written=True,
            decided_by=(TRACE,),
            short="in",
        ),
    )
    warmup: int = field(  # requests of the same shape before the measured ones
        default=8,
        metadata=option_metadata(
            "--warmup N",
            "requests to send before the measured ones",
            SIZE,
            Whole(0),
            label="warm-up requests",
            hint="same shape, not counted",
            in_preset=True,
            preset_default=4,
            always_written=True,
            left_out_of=(DIGEST, LABEL),
        ),
    )
    profile: str = field(
        default="quick",
        metadata=option_metadata(
            "--profile NAME", f"shape of the load: {', '.join(PROFILES)}", SHAPE, is_work=False
        ),
    )
    # warm up by at least `warmup` requests, until two windows agree within 3 %
    until_steady: bool = field(
        default=False,
        metadata=option_metadata(
            "--until-steady",
            "warm up until two windows of time show the same throughput",
            SHAPE,
            Switch(),
            label="warm up until steady",
            hint="two windows agree within 3 %",
            decided_by=(TRACE,),
            left_out_of=(DIGEST, LABEL),
        ),
    )
    # let prompts share a prefix, to measure with the prefix cache
    shared_prefix: bool = field(
        default=False,
        metadata=option_metadata(
            "--shared-prefix",
            "send prompts with a common beginning, so that the server's prefix cache takes effect",
            SHAPE,
            Switch(),
            label="prefix cache",
            hint="off: every prompt is new",
            decided_by=(TRACE,),
        ),
    )
    # requests per second on a schedule; `concurrency` then limits the requests in flight
    rate: float | None = field(
        default=None,
        metadata=option_metadata(
            "--rate R",
            "start R requests per second on a schedule, with at most --concurrency (256) in flight",
            SHAPE,
            Number("requests per second", most=1e6),
            label="requests a second",
            hint="empty: no stream pauses",
            decided_by=(TRACE, SEARCH),
        ),
    )
    # no request starts after this time; `requests` is then the maximum
    seconds: float | None = field(
        default=None,
        metadata=option_metadata(
            "--seconds S",
            "start requests for S seconds, in place of --requests",
            SIZE,
            _SECONDS,
            label="seconds",
            hint="then no request starts",
            in_line="at most {} s",
            decided_by=(SEARCH,),
            left_out_of=(DIGEST, LABEL),
        ),
    )
    arrival: str = field(  # of an open loop; "poisson" draws the times from `seed`
        default="poisson",
        metadata=option_metadata(
            "--arrival",
            "spacing of the requests of a --rate",
            SHAPE,
            Choice(("poisson", "constant")),
            label="schedule",
            hint="of requests a second",
            decided_by=(TRACE, SEARCH),
            left_out_of=(LABEL,),  # it changes the load little
        ),
    )
    # shape of the gamma distribution of the times between requests; None: 1, which is Poisson
    burstiness: float | None = field(
        default=None,
        metadata=option_metadata(
            "--burstiness SHAPE",
            "of a --rate with --arrival poisson: below 1 the requests come in bursts, above 1 evenly; "
            "the shape of the gamma distribution of the times between them, as in vllm bench (1)",
            SHAPE,
            Number("the shape of a gamma distribution", least=0.01, most=1e4),
            in_line="burstiness {}",
            needs="rate",
            no_effect_beside=(("arrival", "with --arrival constant, requests come evenly"),),
            decided_by=(TRACE, SEARCH),
        ),
    )
    # the pause of a stream after an answer (model/think_time.py); "" for none
    think_time: str = field(
        default="",
        metadata=option_metadata(
            "--think-time SECONDS",
            "pause of each stream between an answer and its next request: 5, 2-8, or exp:5 for an "
            "exponential distribution",
            SHAPE,
            CheckedText(_require_valid_think_time),
            in_line="think time {} s",
            no_effect_beside=(
                ("rate", "at a --rate, requests start on a schedule"),
                ("trace_s", "the requests of the trace start at their recorded times"),
                ("command", "your own command sends the requests"),
            ),
            unknown_to=(AIPERF, GUIDELLM),
        ),
    )
    # output lengths are drawn from max_tokens * (1 ± this), from `seed`
    length_spread: float = field(
        default=0.0,
        metadata=option_metadata(
            "--length-spread SHARE",
            "vary the output length: 0.2 requests 80 to 120 % of --max-tokens",
            SHAPE,
            Fraction("0.2 for ±20 %"),
            decided_by=(TRACE,),
        ),
    )
    slo: str = field(  # limits on latencies (model/slo.py): "ttft<=500@p95, tpot<=40@p95"
        default="",
        metadata=option_metadata(
            "--slo LIMITS",
            "limits on latencies in ms, each for a share of the requests: "
            "'ttft<=500@p95, tpot<=40@p95, e2e<=8000@99%'",
            SHAPE,
            CheckedText(_require_valid_slo),
            in_preset=True,
            is_work=False,
        ),
    )
    endpoint: str = field(
        default="chat",
        metadata=option_metadata(
            "--endpoint",
            "/v1/chat/completions, /v1/completions or /v1/embeddings",
            SHAPE,
            Choice(("chat", "completions", "embeddings")),
            in_preset=True,
        ),
    )
    stream: bool = field(  # False: one JSON answer per request, so neither TTFT nor ITL
        default=True,
        metadata=option_metadata(
            "--stream",
            "stream the answers (default); whole answers have neither TTFT nor ITL",
            SHAPE,
            Switch(),
        ),
    )
    # The user's own prompts from a file, used in turn; () = synthetic prompts. Each is JSON: a
    # string, or messages.
    prompts: tuple[str, ...] = ()
    # file name, count and digest of `prompts`, stored with the result
    prompts_name: str = field(
        default="",
        metadata=option_metadata(
            "--prompts FILE",
            "your own prompts: JSON lines with prompt, text or messages and optionally max_tokens, "
            "or ShareGPT JSON",
            SHAPE,
            argument="prompts_file",
            label="prompts file",
            hint="JSON lines of your own",
            decided_by=(TRACE,),
        ),
    )
    # The requests of recorded traffic (bench/trace_load.py); () = no trace. Never stored.
    trace: tuple[str, ...] = ()
    # file name, count, format and digest of `trace`, stored with the result
    trace_name: str = field(
        default="",
        metadata=option_metadata(
            "--trace FILE",
            "replay recorded traffic: times, lengths and shared prefixes from a Mooncake JSONL, an "
            "Azure LLM CSV or a BurstGPT CSV, or ShareGPT's conversations turn by turn",
            SHAPE,
            argument="trace_file",
            label="trace file",
            hint="recorded traffic, at its times",
        ),
    )
    speed: float | None = field(
        default=None,
        metadata=option_metadata(
            "--speed FACTOR",
            "replay a --trace faster or slower: 2x, 0.5x",
            SHAPE,
            Factor(),
            label="speed of the trace",
            hint="2x; empty: as recorded",
            needs="trace_name",
            decided_by=(SEARCH,),
        ),
    )
    first: int | None = field(
        default=None,
        metadata=option_metadata(
            "--first N",
            "replay only the first N requests of a --trace",
            SHAPE,
            OptionalWhole(),
            label="first of the trace",
            hint="requests; empty: all",
            needs="trace_name",
        ),
    )
    # from the first request of the trace to the last one, at the speed of this run; None: no trace
    trace_s: float | None = None
    # share of the trace's prompt tokens that a prefix cache without limit would reuse
    trace_reuse: float | None = None
    # Of synthetic prompts. Results of earlier versions do not name it: their prompts were words. A
    # new benchmark has text (session/bench/spec.py).
    content: str = field(
        default="words",
        metadata=option_metadata(
            "--content",
            "what synthetic prompts are made of: excerpts of real text (default: prose, code, JSON, "
            "several languages), or a list of common words",
            SHAPE,
            Choice(("words", "text")),
            label="prompts made of",
            hint="common words or real text",
            always_written=True,
            decided_by=(TRACE,),
        ),
    )
    # the texts of the content "text", for the process of the load client; never stored
    texts: tuple[str, ...] = ()
    extra_body: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=option_metadata(
            "--extra-body JSON", "fields to add to the body of every request", SHAPE, JsonObject()
        ),
    )
    # the user's own command as the workload, with the endpoint in its environment
    command: tuple[str, ...] = field(
        default=(),
        metadata=option_metadata(
            "--command TEXT",
            "your own benchmark command as one quoted string; {base_url} and {model} are replaced, "
            "and variables such as OPENAI_BASE_URL are set",
            SHAPE,
            Command(),
            argument="own_command",
            decided_by=(TRACE, SEARCH),
        ),
    )
    temperature: float = 0.0
    seed: int = field(
        default=0,
        metadata=option_metadata(
            "--seed N",
            "seed of lengths and arrival times",
            CLIENT,
            SEED,
            left_out_of=(DIGEST, LABEL),
        ),
    )
    # marks every prompt, so that the prefix cache cannot answer; "" = generated per run
    salt: str = ""
    # words of a synthetic prompt, by the server's tokenizer; None: by its first usage
    prompt_words: int | None = None
    # of the text of a trace, by the server's tokenizer (bench/trace_and_speed_text.py); (): by its
    # usage
    passage_tokens: tuple[float, ...] = ()
    # Limits; None: derived from the server's speed (bench/time_limits.py).
    timeout_s: float | None = field(
        default=None,
        metadata=option_metadata(
            "--timeout S",
            "time limit of one request (default: at least 120 s to the first token, then no limit)",
            CLIENT,
            _SECONDS,
            in_preset=True,
            is_work=False,
        ),
    )
    stall_s: float | None = field(  # without a byte after the first content
        default=None,
        metadata=option_metadata(
            "--stall-timeout S",
            "longest pause after the first token of a request (default: 60, more on a slow server)",
            CLIENT,
            _SECONDS,
            in_preset=True,
            is_work=False,
        ),
    )
    # for the whole run: requests in flight at that time count as failed
    deadline_s: float | None = field(
        default=None,
        metadata=option_metadata(
            "--deadline S",
            "time limit of the whole run (default: 1800, or more on a slow server)",
            CLIENT,
            _SECONDS,
            in_preset=True,
            is_work=False,
        ),
    )
    ignore_eos: bool = field(  # dropped with a note if the engine rejects it
        default=True,
        metadata=option_metadata(
            "--natural-lengths",
            "let answers end where the model ends them, instead of sending ignore_eos",
            CLIENT,
            Constant(False),
            left_out_of=(DIGEST, LABEL),
        ),
    )
    random_weights: bool = field(  # of the model, whose text then need not be language
        default=False,
        metadata=option_metadata(
            "--random-weights",
            "the model has random weights, so its text need not make sense",
            CLIENT,
            Constant(),
            is_work=False,
        ),
    )
    # where the load client runs; "": on the server's host if that can run it
    client: str = field(
        default="",
        metadata=option_metadata(
            "--client",
            "where the load client runs for a server on another host: on that host (default, if "
            "its python3 can), or here, through the ssh tunnel",
            CLIENT,
            Choice(("here", "host"), may_be_empty=True),
            is_work=False,
        ),
    )
    # name of the variable that holds the key; the key itself is never stored
    api_key_env: str | None = field(
        default=None,
        metadata=option_metadata(
            "--api-key-env NAME",
            "environment variable that contains the API key",
            CLIENT,
            is_work=False,
        ),
    )
    # PEM file of the CAs to trust at an https URL; "" = the machine's
    ca_file: str = field(
        default="",
        metadata=option_metadata(
            "--cacert FILE",
            "PEM file of the CA to trust for an https URL",
            CLIENT,
            exclusive="certificate",
            is_work=False,
        ),
    )
    insecure: bool = field(
        default=False,
        metadata=option_metadata(
            "--insecure",
            "accept any certificate of an https URL",
            CLIENT,
            Constant(),
            exclusive="certificate",
            is_work=False,
        ),
    )

    @property
    def has_schedule(self) -> bool:
        """Whether requests start at times of their own, whatever the server does: at a rate, or at
        the times of a trace."""
        return self.rate is not None or self.trace_s is not None

    @property
    def replay_speed(self) -> float:
        """How many times faster than recorded a trace is replayed; 1.0 unless the user gave it."""
        return self.speed or 1.0

    @property
    def has_pauses(self) -> bool:
        """Whether a stream may have no request in flight although more are to be sent."""
        return self.has_schedule or bool(self.think_time)

    @property
    def has_conversations(self) -> bool:
        """Whether the load replays conversations, each request of which follows the one before."""
        return bool(self.trace_name) and self.trace_s is None

    @property
    def replays_trace_times(self) -> bool:
        """Whether requests start at the times of a trace."""
        return bool(self.trace_name) and self.trace_s is not None

    @property
    def text_source_name(self) -> str:
        """The name of the trace or the prompts file; "" if the prompts are synthetic."""
        return self.trace_name or self.prompts_name

    @property
    def trace_and_speed_text(self) -> str:
        """Which trace the load replays, and how fast: "trace conversation.jsonl (…) at 2x"."""
        speed = "" if self.speed is None else f" at {self.speed:g}x"
        return f"trace {self.trace_name}{speed}"

    @property
    def has_real_text(self) -> bool:
        """Whether the prompts are excerpts of real text."""
        return self.content == "text" and not self.prompts and not self.prompts_name

    @property
    def prompt_fitting_fields(self) -> dict[str, Any]:
        """The fields that say how synthetic prompts were fitted to the tokenizer of a server, {} if
        they were not. Runs with equal ones get equal text."""
        if self.prompt_words is None:
            return {}
        return {"prompt_words": self.prompt_words, "passage_tokens": self.passage_tokens}

    def least_tokens_of_words(self, words: int) -> int:
        """Return the least number of tokens that `words` words of a synthetic prompt can have. A
        word of the list is at least one token; a piece of real text can be less."""
        return round(_LEAST_TOKENS_PER_PIECE * words) if self.has_real_text else words


OPTIONS = options_declared_in(BenchSpec)
# Fields of one server or one run. A repeated benchmark has the others in common with the first.
_OF_ONE_RUN = (
    *("url", "model", "salt", "prompt_words", "passage_tokens"),
    *("api_key_env", "ca_file", "insecure"),
)
DEFAULTS = {one.name: one.default for one in fields(BenchSpec)}
BY_FIELD = {one.field: one for one in OPTIONS}
OF_A_TRACE = tuple(one for one in OPTIONS if TRACE in one.decided_by)
OF_A_SEARCH = tuple(one for one in OPTIONS if SEARCH in one.decided_by)
ONLY_OF_A_TRACE = tuple(one for one in OPTIONS if one.needs == "trace_name")
REPEATED = tuple(one.name for one in fields(BenchSpec) if one.name not in _OF_ONE_RUN)


def option_texts(spec: BenchSpec) -> tuple[str, ...]:
    """Return what the line that describes the load `spec` says of its options, such as
    ("burstiness 0.5",)."""
    texts = (option.load_line_text(getattr(spec, option.field)) for option in OPTIONS)
    return tuple(filter(None, texts))

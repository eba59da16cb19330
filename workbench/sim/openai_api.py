"""The OpenAI-style API of the simulated engines. Routes, streams, errors and usage have the form
that the real engines give them.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from workbench.model.untrusted_text import as_table
from workbench.sim.engine_log import EngineLog
from workbench.sim.engine_metrics import Metrics
from workbench.sim.http_server import Request
from workbench.sim.language_model import PIECE, Damage, LanguageModel, token_ids_of
from workbench.sim.launch_options import LaunchOptions
from workbench.sim.reply_text import (
    CHAT,
    COMPLETION,
    ReplyForm,
    ReplyText,
    make_embedding,
    pack_vector_as_float32,
)
from workbench.sim.scheduler import Replica, Sequence
from workbench.sim.scored_reply import ScoredReply

OPEN_PATHS = ("/health", "/metrics", "/version", "/ping")  # need no API key


class ApiError(Exception):
    """The error for a request that gets an error reply: `status` is the HTTP status, `kind` the
    error type in the body, and `param` the name of the invalid parameter."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    @property
    def is_unknown_path(self) -> bool:
        """Whether the error means that the server has no such path. The web framework then makes
        the reply."""
        return str(self) in ("Not Found", "Method Not Allowed")


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Return the error for a request that is not valid."""
    return ApiError(400, "BadRequestError", message, param)


Routes = dict[tuple[str, str], Callable[["Request"], None]]


class Api:
    """The HTTP API of one server. Until `ready` is True, it answers only /health."""

    def __init__(
        self,
        launch: LaunchOptions,
        replicas: list[Replica],
        metrics: Metrics,
        log: EngineLog,
        max_len: int,
    ) -> None:
        self.launch = launch
        self.engine = launch.engine
        self.replicas = replicas
        self.metrics = metrics
        self.log = log
        self.max_len = max_len
        self.ready = False
        self.silent = False  # a fault: the server accepts connections and never answers
        self.garbage = False  # a fault: each token of an answer is an exclamation mark
        self.language_model = LanguageModel()
        self.stale_prompts = self.zero_log_probabilities = False  # see ScoredReply
        self.created = int(time.time())
        self.count = 0
        generation: Routes = {
            ("POST", "/v1/chat/completions"): lambda r: self._handle_generation_request(
                r, chat=True
            ),
            ("POST", "/v1/completions"): lambda r: self._handle_generation_request(r, chat=False),
        }
        embedding: Routes = {("POST", "/v1/embeddings"): self._handle_embedding_request}
        self.routes: Routes = {
            ("GET", "/health"): self._reply_health,
            ("GET", "/v1/models"): self._reply_models,
            **(embedding if launch.embeds else generation),
            ("POST", self.engine.tokenize_path): self._reply_token_ids,
            **self.engine.extra_routes(self),
        }
        if launch.metrics:
            self.routes[("GET", "/metrics")] = self._reply_metrics

    def apply_faults(self, faults: Mapping[str, float]) -> None:
        """Damage the answers of the server as the `faults` say."""
        self.garbage = "garbage" in faults
        together, turn = "broken_together" in faults, "broken_second_turn" in faults
        kld = faults.get("kld", 0.0) + self.engine.quantization_kl_divergence(self.launch)
        self.language_model = LanguageModel(Damage(kld, together, turn, self.garbage))
        defect = (
            self.engine.speculation_defect
            if self.engine.uses_defective_speculation(self.launch)
            else ""
        )
        defects = {*faults, defect}
        self.stale_prompts = "stale_prompts" in defects
        self.zero_log_probabilities = "zeros" in defects

    def handle(self, request: Request) -> None:
        """Answer one request."""
        if self.silent:
            return
        route = self.routes.get((request.method, request.path))
        status = 200
        try:
            if route is None:
                raise self._unknown_route_error(request.path)
            if not self.ready and request.path != "/health":
                raise ApiError(503, "unavailable_error", "Loading model")
            self._require_api_key(request)
            route(request)
        except ApiError as error:
            status = error.status
            request.reply(status, self.engine.error_body(error))
        if request.path not in ("/health", "/metrics") or status != 200:
            self.log.write_access_line(
                request.peer, request.method, request.path_with_query, status
            )

    def _unknown_route_error(self, path: str) -> ApiError:
        if any(path == known for _, known in self.routes):
            return ApiError(405, "NotFoundError", "Method Not Allowed")
        return ApiError(404, "NotFoundError", "Not Found")

    def make_reply_id(self, form: ReplyForm) -> str:
        """Return the id of a new reply of this form."""
        self.count += 1
        return f"{form.id_prefix}-simulated-{self.created:x}-{self.count}"

    def chat_messages_text(self, request: Request) -> str:
        """Return the messages of a chat request as one text, without the tokens of the chat
        template."""
        return _chat_text(parse_json_body(request))

    # -- small routes ------------------------------------------------------------------------------

    def _reply_token_ids(self, request: Request) -> None:
        """Reply with the token ids of the text in a request. If the engine accepts messages, they
        can replace the text."""
        field = self.engine.tokenize_field
        body = parse_json_body(request)
        given = body.get(field)
        messages = given if isinstance(given, list) else body.get("messages")
        if messages is not None and self.engine.tokenizes_messages:
            ids = token_ids_of(" ".join(_prompt_pieces({"messages": messages}, chat=True)))
        elif isinstance(given, str):
            ids = token_ids_of(given)
        else:
            raise bad_request(f"{field}: Field required", field)
        request.reply(200, self.engine.token_count_body(ids, self.max_len))

    def _reply_metrics(self, request: Request) -> None:
        request.reply(
            200, self.metrics.render_metrics_page(), "text/plain; version=0.0.4; charset=utf-8"
        )

    def _reply_health(self, request: Request) -> None:
        request.reply(200 if self.ready else 503, self.engine.health_body(self.ready))

    def _reply_models(self, request: Request) -> None:
        entries = [
            {
                "id": name,
                "object": "model",
                "created": self.created,
                "owned_by": "simulated",
                "root": self.launch.model.id,
                "parent": None,
                "max_model_len": self.max_len,
            }
            for name in self.launch.served
        ]
        request.reply(200, {"object": "list", "data": entries})

    def _require_api_key(self, request: Request) -> None:
        """Raise ApiError if the server has an API key, the path needs it, and the request does not
        have it."""
        key = self.launch.api_key
        if not key or request.path in OPEN_PATHS:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key not in (given, request.headers.get("x-api-key")):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    # -- generation --------------------------------------------------------------------------------

    def _handle_generation_request(self, request: Request, *, chat: bool) -> None:
        body = parse_json_body(request)
        prompt = _prompt_pieces(body, chat)
        if not prompt:
            raise bad_request("The decoder prompt cannot be empty")
        model = body.get("model")
        if self.engine.checks_model and model is not None and model not in self.launch.served:
            raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        if not chat and self.engine.asks_for_log_probabilities(body):
            self.engine.reply_with_log_probabilities(self, request, body)
            return
        length = self._choose_output_token_count(body, len(prompt), chat)
        reply = ApiReply(self, request, body, chat, length)
        sequence = Sequence(prompt, length, reply.add_generated_tokens)
        reply.sequence = sequence
        self._enqueue_sequence(sequence, request)

    def reply_with_log_probabilities(
        self,
        request: Request,
        ids: list[int],
        answer_length: Any,
        make_body: Callable[[ScoredReply], dict[str, Any]],
    ) -> None:
        """Answer a request with log probabilities. `ids` are the token ids of its prompt,
        `answer_length` is the number of tokens to generate, as the request has it, and `make_body`
        makes the body of the reply. Raises ApiError for an empty prompt and an invalid length."""
        if not ids:
            raise bad_request("The decoder prompt cannot be empty")
        most = self._choose_output_token_count(
            {"max_tokens": answer_length, "ignore_eos": True}, len(ids), chat=False
        )
        scored = ScoredReply(self, request, ids, most, make_body)
        self._enqueue_sequence(scored.sequence, request)

    def _enqueue_sequence(self, sequence: Sequence, request: Request) -> None:
        """Give a request, as a `sequence` of tokens, to the replica of the model that has the least
        load."""
        replica = min(self.replicas, key=lambda r: r.unfinished_request_count)
        request.on_gone = lambda: replica.abort(sequence)
        replica.add_sequence(sequence)

    def _handle_embedding_request(self, request: Request) -> None:
        """Reply with one embedding for the text in a request, as soon as the simulated engine has
        processed its tokens."""
        body = parse_json_body(request)
        asked = _prompt_text({"prompt": body.get("input")})
        prompt = PIECE.findall(asked)
        if not prompt:
            raise bad_request("input: Field required", "input")
        if len(prompt) > self.max_len:
            raise bad_request(
                f"This model's maximum context length is {self.max_len} tokens.", "input"
            )

        def reply_when_finished(tokens: int, finished: bool) -> None:
            if finished:
                usage = {
                    "prompt_tokens": len(prompt),
                    "total_tokens": len(prompt),
                    "completion_tokens": 0,
                }
                vector: Any = make_embedding(asked)
                if body.get("encoding_format") == "base64":
                    vector = base64.b64encode(pack_vector_as_float32(vector)).decode()
                entry = {"object": "embedding", "index": 0, "embedding": vector}
                frame = {
                    "object": "list",
                    "model": self.launch.served[0],
                    "data": [entry],
                    "usage": usage,
                }
                request.reply(
                    200,
                    {"id": self.make_reply_id(COMPLETION), "created": int(time.time()), **frame},
                )

        sequence = Sequence(prompt, 1, reply_when_finished, embedding=True)
        self._enqueue_sequence(sequence, request)

    def _choose_output_token_count(
        self, body: dict[str, Any], prompt_tokens: int, chat: bool
    ) -> int:
        """Return the number of tokens to generate for a request. This is the limit in its `body` if
        the engine must ignore the end of the text, otherwise a typical length up to the limit.
        `prompt_tokens` is the number of prompt tokens, and `chat` says whether it is a chat
        request. Raises ApiError for an invalid limit."""
        room = self.max_len - prompt_tokens
        limit = requested_token_limit(body)
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
        if room < 1 or (limit and limit > room and self.engine.rejects_long_requests):
            raise bad_request(
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's "
                "maximum context length "
                f"is {self.max_len} tokens and your request has {prompt_tokens} input tokens "
                f"({limit} > {self.max_len} - {prompt_tokens}).",
                "max_tokens",
            )
        most = min(int(limit or (room if chat else 16)), room)
        if body.get("ignore_eos"):
            return most
        natural = (
            40
            + zlib.crc32(
                repr((body.get("messages"), body.get("prompt"), body.get("seed"))).encode()
            )
            % 360
        )
        return min(most, max(natural, int_field(body, "min_tokens")))


def int_field(body: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return the field `name` of a request as a number, or `default` if it is absent, null or 0."""
    return int(body.get(name) or default)


def requested_token_limit(body: dict[str, Any]) -> Any:
    """Return the limit on the tokens of the answer, from the field max_completion_tokens,
    max_tokens or n_predict of the request. None if the request has no limit."""
    names = ("max_completion_tokens", "max_tokens", "n_predict")
    return next((body[name] for name in names if body.get(name) is not None), None)


compact = json.JSONEncoder(separators=(",", ":")).encode  # JSON without spaces


def require_prompt_ids(given: Any) -> list[int]:
    """Return the token ids of a prompt, the field `given` of a request: a text, or a list of token
    ids. Raises ApiError if it is neither, or an empty list."""
    if isinstance(given, str):
        return token_ids_of(given)
    if isinstance(given, list) and given and all(type(one) is int and one >= 0 for one in given):
        return given
    raise bad_request("prompt: Field required", "prompt")


def parse_json_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request. Raises ApiError if it is none."""
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise bad_request(f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("Input should be a valid dictionary")
    return body


def _prompt_pieces(body: dict[str, Any], chat: bool) -> list[str]:
    """Return the tokens of a request's prompt as texts, with those of the chat template if `chat`
    is true. Raises ApiError if the request has no prompt."""
    if not chat:
        return PIECE.findall(_prompt_text(body))
    return ["<s>", *PIECE.findall(_chat_text(body)), "<assistant>"]


def _chat_text(body: dict[str, Any]) -> str:
    """Return the messages of a chat request as one text, each with its role. Raises ApiError if
    there are none."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages: Field required", "messages")
    parts = []
    for message in messages:
        role: Any = ""
        content: Any = None
        if isinstance(message, dict):
            role, content = message.get("role"), message.get("content")
        if isinstance(content, list):
            content = " ".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        parts.append(f"{role} {content or ''}")
    return "\n".join(parts)


def _prompt_text(body: dict[str, Any]) -> str:
    """Return the prompt of a completion request as text; of a list, the first one, or its token ids
    as words. Raises ApiError if there is none."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        if all(isinstance(p, int) for p in prompt):
            return " ".join(f"t{p % 999999}" for p in prompt)
        prompt = prompt[0] if prompt else None
    if not isinstance(prompt, str):
        raise bad_request("prompt: Field required", "prompt")
    return prompt


class ApiReply:
    """The reply to one request, streamed or complete. The scheduler calls `add_generated_tokens`
    with the number of new tokens."""

    def __init__(
        self, api: Api, request: Request, body: dict[str, Any], chat: bool, length: int
    ) -> None:
        self.api = api
        self.engine = api.engine
        self.request = request
        self.chat = chat
        self.stream = bool(body.get("stream"))
        options = as_table(body.get("stream_options"))
        self.usage_chunk = bool(options.get("include_usage"))
        self.every_usage = bool(options.get("continuous_usage_stats"))
        limit = requested_token_limit(body)
        self.reason = (
            "length" if limit is None or length >= limit or body.get("ignore_eos") else "stop"
        )
        self.form = CHAT if chat else COMPLETION
        self.id = api.make_reply_id(self.form)
        self.sequence: Sequence | None = None
        self.sent = 0
        prompt = _chat_text(body) if chat else _prompt_text(body)
        self.text = ReplyText(prompt, garbage=api.garbage)
        created = int(time.time())
        model = body.get("model")
        if model not in api.launch.served:
            model = api.launch.served[0]
        self.frame = {"id": self.id, "object": self.form.kind, "created": created, "model": model}
        self.frame["system_fingerprint"] = "simulated"
        self.head = compact({**self.frame, "object": self.form.chunk_kind})[:-1]

    def add_generated_tokens(self, new_tokens: int, finished: bool) -> None:
        """Add `new_tokens` new tokens to the reply. A streamed reply sends them to the client at
        once. Any other reply sends all its tokens when `finished` is True."""
        sequence = self.sequence
        assert sequence is not None
        if self.stream:
            self._send_reply_chunk(sequence, new_tokens, finished)
        elif finished:
            self._send_whole_reply(sequence)
        if finished:
            self.engine.log_finished_request(self.api, self.id, sequence)

    def _send_reply_chunk(self, sequence: Sequence, tokens: int, finished: bool) -> None:
        events = ""
        if self.sent == 0:
            self.request.start_stream()
            if self.chat:
                events = self._content_event_text(
                    {"role": "assistant", "content": ""},
                    None,
                    self._continuous_usage_fields(sequence, 0),
                )
        text = self.text.text_of_token_range(self.sent, tokens)
        self.sent += tokens
        reason = self.reason if finished and self.engine.finish_on_content else None
        content = {"content": text} if self.chat else text
        events += self._content_event_text(content, reason, self._continuous_usage_fields(sequence))
        if finished:
            self.request.end_stream(
                (events + self.engine.stream_end_events_text(self, sequence)).encode()
            )
        else:
            self.request.send_event(events.encode())

    def _content_event_text(self, content: Any, reason: str | None, fields: dict[str, Any]) -> str:
        choice = {
            "index": 0,
            self.form.content_field: content,
            "logprobs": None,
            "finish_reason": reason,
        }
        return self.event_text({"choices": [choice], **fields})

    def event_text(self, fields: dict[str, Any]) -> str:
        """Return a server-sent event with the fields that all events of the reply have, followed by
        `fields`."""
        return f"data: {self.head},{compact(fields)[1:]}\n\n"

    def finish_event_text(self, fields: dict[str, Any]) -> str:
        """Return a server-sent event with the finish_reason and `fields`, but without text."""
        return self._content_event_text({} if self.chat else "", self.reason, fields)

    def _send_whole_reply(self, sequence: Sequence) -> None:
        """Send the reply to a request that is not streamed."""
        text = self.text.text_of_token_range(0, sequence.generated)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self.reason}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        told = self.usage_chunk or self.engine.usage_unasked
        usage = self.make_usage_object(sequence) if told else None
        reply = {**self.frame, "choices": [choice], "usage": usage}
        self.request.reply(200, {**reply, **self.engine.extra_reply_fields(sequence)})

    def make_usage_object(
        self, sequence: Sequence, output_tokens: int | None = None
    ) -> dict[str, Any]:
        """Return the object "usage" of the reply, with the number of output tokens `output_tokens`.
        If `output_tokens` is None, all output tokens so far are counted."""
        output_tokens = sequence.generated if output_tokens is None else output_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": len(sequence.prompt),
            "total_tokens": len(sequence.prompt) + output_tokens,
            "completion_tokens": output_tokens,
            "prompt_tokens_details": {"cached_tokens": sequence.cached},
            "owned_by": "simulated",
        }
        return {**usage, **self.engine.extra_usage_fields(sequence)}

    def _continuous_usage_fields(
        self, sequence: Sequence, output_tokens: int | None = None
    ) -> dict[str, Any]:
        return (
            {"usage": self.make_usage_object(sequence, output_tokens)} if self.every_usage else {}
        )

"""The OpenAI-style API of the simulated engines: the same routes, stream shapes, errors and usage as the real ones."""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

from workbench.sim.engine_log import EngineLog
from workbench.sim.engine_metrics import Metrics
from workbench.sim.http_server import Request
from workbench.sim.launch_options import Launch
from workbench.sim.scheduler import Replica, Sequence

WORDS = (  # noqa: SIM905
    "the model reads every weight once for each token so memory sets the pace while clocks only help the prompt and "
    "batches share what was read until compute or cache runs short this text is simulated filler and says nothing"
).split()
PIECE = re.compile(r"\w{1,7}|[^\w\s]")  # about what a byte-pair tokenizer makes of English
SPECIAL = re.compile(rf"<s>|<assistant>|{PIECE.pattern}")


class ApiError(Exception):
    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class Api:
    """Routes of one server. `ready` gates everything but /health while the engine loads."""

    def __init__(self, launch: Launch, replicas: list[Replica], metrics: Metrics, log: EngineLog, max_len: int) -> None:
        self.launch = launch
        self.replicas = replicas
        self.metrics = metrics
        self.log = log
        self.max_len = max_len
        self.ready = False
        self.silent = False  # a fault: connections are taken and never answered
        self.created = int(time.time())
        self.count = 0
        self.routes: dict[tuple[str, str], Callable[[Request], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): lambda r: self._generate(r, chat=True),
            ("POST", "/v1/completions"): lambda r: self._generate(r, chat=False),
        }
        if launch.metrics:
            self.routes[("GET", "/metrics")] = lambda r: r.reply(
                200, self.metrics.text(), "text/plain; version=0.0.4; charset=utf-8"
            )
        {
            "vllm": self._vllm_routes,
            "sglang": self._sglang_routes,
            "llamacpp": self._llamacpp_routes,
            "tabbyapi": self._tabbyapi_routes,
        }[launch.engine]()

    def handle(self, request: Request) -> None:
        if self.silent:
            return
        route = self.routes.get((request.method, request.path))
        status = 200
        try:
            if route is None:
                known = any(path == request.path for _, path in self.routes)
                raise ApiError(405 if known else 404, "NotFoundError", "Method Not Allowed" if known else "Not Found")
            if not self.ready and request.path != "/health":
                raise ApiError(503, "unavailable_error", "Loading model")
            self._authorize(request)
            route(request)
        except ApiError as error:
            status = error.status
            request.reply(status, self._error(error))
        if request.path not in ("/health", "/metrics") or status != 200:
            self.log.access(request.peer, request.method, request.path, status)

    # -- small routes --------------------------------------------------------------------------------------------

    def _vllm_routes(self) -> None:
        self.routes[("GET", "/version")] = lambda r: r.reply(200, {"version": self.launch.version, "simulated": True})
        self.routes[("GET", "/load")] = lambda r: r.reply(200, {"server_load": sum(p.load for p in self.replicas)})
        self.routes[("GET", "/ping")] = lambda r: r.reply(200)
        self.routes[("POST", "/tokenize")] = lambda r: self._tokenize(r, "prompt")

    def _sglang_routes(self) -> None:
        info = {"model_path": self.launch.model.id, "tokenizer_path": self.launch.model.id, "is_generation": True}
        for path in ("/model_info", "/get_model_info"):
            self.routes[("GET", path)] = lambda r: r.reply(200, info)
        for path in ("/server_info", "/get_server_info"):
            self.routes[("GET", path)] = lambda r: r.reply(200, {**info, "version": self.launch.version})
        self.routes[("POST", "/tokenize")] = lambda r: self._tokenize(r, "prompt")

    def _llamacpp_routes(self) -> None:
        self.routes[("GET", "/props")] = lambda r: r.reply(
            200,
            {"total_slots": self.launch.max_sequences, "model_path": self.launch.model.id, "build_info": "simulated"},
        )
        self.routes[("GET", "/slots")] = lambda r: r.reply(
            200,
            [{"id": i, "is_processing": i < len(self.replicas[0].running)} for i in range(self.launch.max_sequences)],
        )

        self.routes[("POST", "/tokenize")] = lambda r: self._tokenize(r, "content")
        self.routes[("POST", "/apply-template")] = lambda r: r.reply(
            200, {"prompt": f"<s>{_chat_text(self._body(r))}<assistant>"}
        )

    def _tabbyapi_routes(self) -> None:
        self.routes[("POST", "/v1/token/encode")] = lambda r: self._tokenize(r, "text")

    def _tokenize(self, request: Request, field: str) -> None:
        """Token ids of a text, and where the engine takes them of messages."""
        body = self._body(request)
        given = body.get(field)
        messages = given if isinstance(given, list) else body.get("messages")
        if messages is not None and self.launch.engine != "sglang":
            tokens = _pieces({"messages": messages}, chat=True)
        elif isinstance(given, str):
            tokens = SPECIAL.findall(given)
        else:
            raise ApiError(400, "BadRequestError", f"{field}: Field required", field)
        ids = [zlib.crc32(token.encode()) % 99999 for token in tokens]
        replies: dict[str, Any] = {"llamacpp": {"tokens": ids}, "tabbyapi": {"tokens": ids, "length": len(ids)}}
        whole = {"count": len(ids), "max_model_len": self.max_len, "tokens": ids}
        request.reply(200, replies.get(self.launch.engine, whole))

    def _health(self, request: Request) -> None:
        engine = self.launch.engine
        if not self.ready:
            body: Any = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
            request.reply(503, body if engine == "llamacpp" else b"")
        elif engine == "tabbyapi":
            request.reply(200, {"status": "healthy", "issues": []})
        else:
            request.reply(200, {"status": "ok"} if engine == "llamacpp" else b"")

    def _models(self, request: Request) -> None:
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

    def _authorize(self, request: Request) -> None:
        key = self.launch.api_key
        if not key or request.path in ("/health", "/metrics", "/version", "/ping"):
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ") if key else ""
        if key not in (given, request.headers.get("x-api-key")):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def _error(self, error: ApiError) -> dict[str, Any]:
        if self.launch.engine == "vllm" and error.status == 401:
            return {"error": "Unauthorized"}
        text = str(error)
        if self.launch.engine == "sglang":
            return {"object": "error", "message": text, "type": error.kind, "param": error.param, "code": error.status}
        if error.kind == "NotFoundError" and text in ("Not Found", "Method Not Allowed"):
            return {"detail": text}
        return {"error": {"message": text, "type": error.kind, "param": error.param, "code": error.status}}

    # -- generation ----------------------------------------------------------------------------------------------

    def _generate(self, request: Request, *, chat: bool) -> None:
        body = self._body(request)
        prompt = _pieces(body, chat)
        if not prompt:
            raise ApiError(400, "BadRequestError", "The decoder prompt cannot be empty")
        model = body.get("model")
        if self.launch.engine == "vllm" and model is not None and model not in self.launch.served:
            raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        length = self._length(body, len(prompt), chat)
        reply = ApiReply(self, request, body, chat, length)
        sequence = Sequence(prompt, length, reply.deliver)
        reply.sequence = sequence
        replica = min(self.replicas, key=lambda r: r.load)
        request.on_gone = lambda: replica.abort(sequence)
        replica.add(sequence)

    def _body(self, request: Request) -> dict[str, Any]:
        try:
            body = json.loads(request.body)
        except ValueError as error:
            raise ApiError(400, "BadRequestError", f"JSON decode error: {error}") from None
        if not isinstance(body, dict):
            raise ApiError(400, "BadRequestError", "Input should be a valid dictionary")
        return body

    def _length(self, body: dict[str, Any], prompt: int, chat: bool) -> int:
        """Tokens to generate: all that were asked for where the end is ignored, else a natural length."""
        room = self.max_len - prompt
        asked = asked_length(body)
        if asked is not None and (not isinstance(asked, int) or asked < 1):
            raise ApiError(400, "BadRequestError", f"max_tokens must be at least 1, got {asked}.", "max_tokens")
        if room < 1 or (asked and asked > room and self.launch.engine in ("vllm", "sglang")):
            raise ApiError(
                400,
                "BadRequestError",
                f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length "
                f"is {self.max_len} tokens and your request has {prompt} input tokens "
                f"({asked} > {self.max_len} - {prompt}).",
                "max_tokens",
            )
        limit = min(int(asked or (room if chat else 16)), room)
        if body.get("ignore_eos"):
            return limit
        natural = 40 + zlib.crc32(repr((body.get("messages"), body.get("prompt"), body.get("seed"))).encode()) % 360
        return min(limit, max(natural, int(body.get("min_tokens") or 0)))

    def next_id(self, chat: bool) -> str:
        self.count += 1
        return f"{'chatcmpl' if chat else 'cmpl'}-simulated-{self.created:x}-{self.count}"


def asked_length(body: dict[str, Any]) -> Any:
    """The length that a request asks for under any of its names; None where it names none."""
    names = ("max_completion_tokens", "max_tokens", "n_predict")
    return next((body[name] for name in names if body.get(name) is not None), None)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _pieces(body: dict[str, Any], chat: bool) -> list[str]:
    """A request's prompt as tokens, with those of the chat template."""
    return ["<s>", *PIECE.findall(_chat_text(body)), "<assistant>"] if chat else PIECE.findall(_prompt_text(body))


def _chat_text(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "BadRequestError", "messages: Field required", "messages")
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = " ".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        parts.append(f"{message.get('role') if isinstance(message, dict) else ''} {content or ''}")
    return "\n".join(parts)


def _prompt_text(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        if all(isinstance(p, int) for p in prompt):
            return " ".join(f"t{p % 99999}" for p in prompt)
        prompt = prompt[0] if prompt else None
    if not isinstance(prompt, str):
        raise ApiError(400, "BadRequestError", "prompt: Field required", "prompt")
    return prompt


class ApiReply:
    """One answer on its way out, streamed or gathered."""

    def __init__(self, api: Api, request: Request, body: dict[str, Any], chat: bool, length: int) -> None:
        self.api = api
        self.request = request
        self.chat = chat
        self.engine = api.launch.engine
        self.stream = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        self.usage_chunk = bool(options.get("include_usage"))
        self.every_usage = bool(options.get("continuous_usage_stats"))
        asked = asked_length(body)
        self.reason = "length" if asked is None or length >= asked or body.get("ignore_eos") else "stop"
        self.id = api.next_id(chat)
        self.sequence: Sequence | None = None
        self.sent = 0
        kind = "chat.completion" if chat else "text_completion"
        chunk = f"{kind}.chunk" if chat else kind
        model = body.get("model") if body.get("model") in api.launch.served else api.launch.served[0]
        self.frame = {"id": self.id, "object": kind, "created": int(time.time()), "model": model}
        self.frame["system_fingerprint"] = "simulated"
        head = compact({**self.frame, "object": chunk})[:-1]
        field = '"delta":{"content":"' if chat else '"text":"'
        self.before = f'data: {head},"choices":[{{"index":0,{field}'
        self.after = f'"{"}" if chat else ""},"logprobs":null,"finish_reason":'
        self.head = head
        self.loop = asyncio.get_running_loop()

    def deliver(self, tokens: int, finished: bool) -> None:
        sequence = self.sequence
        assert sequence is not None
        if not self.stream:
            if finished:
                self._whole(sequence)
                self._finished(sequence)
            return
        first = self.sent == 0
        text = self._text(self.sent, tokens)
        self.sent += tokens
        data = ""
        if first:
            self.request.start_stream()
            if self.chat:
                delta = '{"role":"assistant","content":""}'
                data = f'data: {self.head},"choices":[{{"index":0,"delta":{delta},"logprobs":null,'
                usage = f',"usage":{compact(self._usage(sequence, 0))}' if self.every_usage else ""
                data += f'"finish_reason":null}}]{usage}}}\n\n'
        last_on_content = finished and self.engine == "vllm"
        end = f'"{self.reason}"' if last_on_content else "null"
        usage = f',"usage":{compact(self._usage(sequence))}' if self.every_usage else ""
        data += f"{self.before}{text}{self.after}{end}}}]{usage}}}\n\n"
        if not finished:
            self.request.event(data.encode())
            return
        self.request.end_stream((data + self._ending(sequence)).encode())
        self._finished(sequence)

    def _ending(self, sequence: Sequence) -> str:
        """After the last content: finish chunk where it stands alone, usage, [DONE]."""
        delta = '"delta":{}' if self.chat else '"text":""'
        finish = f'"choices":[{{"index":0,{delta},"logprobs":null,"finish_reason":"{self.reason}"}}]'
        out = ""
        usage = compact(self._usage(sequence))
        timings = f',"timings":{compact(self._timings(sequence))}' if self.engine == "llamacpp" else ""
        if self.engine == "tabbyapi":
            with_usage = f',"usage":{usage}' if self.usage_chunk else ""
            return f"data: {self.head},{finish}{with_usage}}}\n\ndata: [DONE]\n\n"
        if self.engine != "vllm":
            out += f"data: {self.head},{finish}{'' if self.usage_chunk else timings}}}\n\n"
        if self.usage_chunk:
            out += f'data: {self.head},"choices":[],"usage":{usage}{timings}}}\n\n'
        return out + "data: [DONE]\n\n"

    def _whole(self, sequence: Sequence) -> None:
        text = self._text(0, sequence.generated)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self.reason}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        reply = {**self.frame, "choices": [choice], "usage": self._usage(sequence)}
        if self.engine == "llamacpp":
            reply["timings"] = self._timings(sequence)
        self.request.reply(200, reply)

    def _text(self, start: int, count: int) -> str:
        return "".join(f" {WORDS[(start + i) % len(WORDS)]}" for i in range(count))

    def _usage(self, sequence: Sequence, made: int | None = None) -> dict[str, Any]:
        made = sequence.generated if made is None else made
        usage: dict[str, Any] = {
            "prompt_tokens": len(sequence.prompt),
            "total_tokens": len(sequence.prompt) + made,
            "completion_tokens": made,
            "prompt_tokens_details": {"cached_tokens": sequence.cached},
            "owned_by": "simulated",
        }
        if self.engine == "tabbyapi":
            prompt_s, decode_s = self._times(sequence)
            usage |= {"prompt_time": prompt_s, "completion_time": decode_s, "total_time": prompt_s + decode_s}
            usage["prompt_tokens_per_sec"] = len(sequence.prompt) / max(prompt_s, 1e-9)
            usage["completion_tokens_per_sec"] = sequence.generated / max(decode_s, 1e-9)
        return usage

    def _times(self, sequence: Sequence) -> tuple[float, float]:
        return sequence.first - sequence.admitted, sequence.last - sequence.first

    def _timings(self, sequence: Sequence) -> dict[str, float]:
        prompt_s, decode_s = self._times(sequence)
        return {
            "cache_n": sequence.cached,
            "prompt_n": len(sequence.prompt) - sequence.cached,
            "prompt_ms": prompt_s * 1000,
            "prompt_per_second": (len(sequence.prompt) - sequence.cached) / max(prompt_s, 1e-9),
            "predicted_n": sequence.generated,
            "predicted_ms": decode_s * 1000,
            "predicted_per_second": sequence.generated / max(decode_s, 1e-9),
        }

    def _finished(self, sequence: Sequence) -> None:
        """The line that llama.cpp and TabbyAPI write for each request."""
        prompt_s, decode_s = self._times(sequence)
        fresh, made = len(sequence.prompt) - sequence.cached, sequence.generated
        if self.engine == "llamacpp":
            for kind, seconds, count in (("prompt eval", prompt_s, fresh), ("       eval", decode_s, made)):
                each, rate = seconds * 1000 / max(1, count), count / max(seconds, 1e-9)
                self.api.log.line(
                    f"slot print_timing: id  0 | task {self.api.count} | {kind} time = {seconds * 1000:10.2f} ms / "
                    f"{count:5d} tokens ({each:8.2f} ms per token, {rate:8.2f} tokens per second)"
                )
        elif self.engine == "tabbyapi":
            queue = sequence.admitted - sequence.arrived
            self.api.log.line(
                f"Metrics (ID: {self.id}): {made} tokens generated in {prompt_s + decode_s:.2f} seconds "
                f"(Queue: {queue:.2f} s, Process: {sequence.cached} cached tokens and {fresh} new tokens at "
                f"{fresh / max(prompt_s, 1e-9):.2f} T/s, Generate: {made / max(decode_s, 1e-9):.2f} T/s, "
                f"Context: {len(sequence.prompt)} tokens)"
            )

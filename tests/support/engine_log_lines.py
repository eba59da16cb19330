"""The log lines with which each engine reports that it is ready, and its address, as real servers
wrote them."""

from __future__ import annotations

import re

READY = {
    "vllm": re.compile(r"Application startup complete\."),
    "sglang": re.compile(r"The server is fired up and ready to roll!"),
    "tabbyapi": re.compile(r"Uvicorn running on|Chat completions: https?://"),
    "llamacpp": re.compile(r"(?:server is )?listening on https?://"),
}
ADDRESS = {  # group "url"
    "vllm": re.compile(r"Starting vLLM (?:API )?server(?: \d+)? on (?P<url>https?://\S+)"),
    "sglang": re.compile(r"Uvicorn running on (?P<url>https?://\S+)"),
    "tabbyapi": re.compile(r"(?:Uvicorn running on|Chat completions:) (?P<url>https?://[^/\s]+)"),
    "llamacpp": re.compile(r"listening on (?P<url>https?://\S+)"),
}

"""Other load generators on the server of bench_client.py, in its rounds: what they report against
what was.

A peer is a command that is already installed (nothing is installed here), with {url}, {model},
{streams}, {requests}, {tokens} and {out} filled in; {out} is the result file that it writes, in a
form that `workbench results import` reads:

    --peer 'vllm=vllm bench serve --backend openai-chat --base-url {url} --endpoint
    /v1/chat/completions
            --model {model} --tokenizer DIRECTORY --dataset-name random --random-input-len 64
            --random-output-len {tokens} --num-prompts {requests} --max-concurrency {streams}
            --ignore-eos --save-result --result-filename {out}'

CPU seconds are the command's own, its start included. True figures are over all requests that it
made.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.model.distribution import quantile
from workbench.report import imports


def parsed(text: str) -> tuple[str, list[str]]:
    name, equals, command = text.partition("=")
    if not equals or not command.strip():
        raise SystemExit(f"--peer {text!r} is not NAME=COMMAND")
    return name, shlex.split(command)


class Peer:
    """Another load generator. `measure` runs it once on a server, whose own records give the truth."""

    def __init__(self, text: str) -> None:
        self.name, self._argv = parsed(text)

    def measure(self, server: Any, **asked: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            words = {"url": server.url, "model": "m", "out": str(out), **asked}
            argv = [one.format_map(words) for one in self._argv]
            before = children_cpu_s()
            done = subprocess.run(
                argv, preexec_fn=to_the_clients_core, capture_output=True, text=True, check=False
            )
            cpu_s = children_cpu_s() - before
            if done.returncode and not (out.exists() or done.stdout):
                raise SystemExit(
                    f"{shlex.join(argv)}: exit code {done.returncode}\n{done.stderr[-2000:]}"
                )
            if not out.exists():  # it went to stdout
                out.write_text(done.stdout)
            (found,) = imports.read_results(out)
        server.stop()
        return {
            **errors(found.summary, server.records),
            "CPU s per 1M tokens": 1e6 * cpu_s / tokens_of(server.records),
        }


def to_the_clients_core() -> None:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tokens_of(records: list[dict[str, Any]]) -> int:
    return sum(len(one["sent_ns"]) for one in records) or 1


def errors(summary: Any, records: list[dict[str, Any]]) -> dict[str, float]:
    """Return reported minus true values in ms, with NaN for each value that the peer does not
    report, and the reported and the true rate."""
    ttft = sorted((one["sent_ns"][0] - one["request_ns"]) / 1e6 for one in records)
    gaps = sorted((b - a) / 1e6 for one in records for a, b in pairwise(one["sent_ns"]))
    first, last = (
        min(one["request_ns"] for one in records),
        max(one["done_ns"][-1] for one in records),
    )
    true = {
        ("ttft_ms", "mean"): sum(ttft) / len(ttft),
        ("ttft_ms", "p99"): quantile(ttft, 0.99),
        ("itl_ms", "p99"): quantile(gaps, 0.99) if gaps else float("nan"),
    }
    found = {
        "tok/s": summary.output_tok_s or float("nan"),
        "true tok/s": 1e9 * tokens_of(records) / (last - first),
    }
    for (name, part), value in true.items():
        said = summary.latency_ms(name, part)
        found[f"{name[:-3].upper()} {part} off"] = float("nan") if said is None else said - value
    return found

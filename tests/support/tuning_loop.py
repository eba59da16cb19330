"""The loop of a user who tunes, with commands only: plan, start, benchmark, change one flag,
benchmark again, compare, stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.command_line import CommandLine, Counts, counted_alike, counts, ownerless_shared_memory

from workbench.server.text_probe import (
    LONGER_ANSWERS,
    LONGER_TOKENS,
    MORE_LONGER_ANSWERS,
    PROMPTS_TOGETHER,
    SHORT_ANSWER_TOKENS,
)


@dataclass(frozen=True)
class Loop:
    engine: str
    preset: str
    options: Sequence[str]  # of plan and start
    shape: Sequence[object]  # of bench
    change: tuple[str, object]  # the one flag, and its other value
    ready_s: float
    served_model: str = "tiny"
    speaks: bool = True  # False: the weights are random, so `bench` may refuse the text

    def run(self, cli: CommandLine) -> list[dict[str, Any]]:
        """Run the loop and return both results. Every step is checked, and nothing may be left at
        the end."""
        shared_before = ownerless_shared_memory()
        flag, value = self.change
        first, status = self._measured(cli, self.options)
        run_dirs = [status["run_dir"]]
        second, status = self._measured(cli, [*self.options, "--set", f"{flag}={value}"])
        run_dirs.append(status["run_dir"])
        self._compared(cli, first, second)
        self._exported(cli, second)
        runs = cli.ok("servers")["servers"]
        assert [(run["run_dir"], run["state"]) for run in runs] == [
            (d, "stopped") for d in reversed(run_dirs)
        ]
        assert ownerless_shared_memory() <= shared_before
        return [first, second]

    def _measured(
        self, cli: CommandLine, options: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        plan = cli.ok("plan", self.preset, *options)
        status = cli.ok(
            "start",
            self.preset,
            *options,
            "--wait",
            "--timeout",
            self.ready_s,
            timeout_s=self.ready_s + 30,
        )
        try:
            assert (status["state"], status["reason"]) == ("ready", None)
            assert status["served_model"] == self.served_model
            assert plan["installed"].endswith(f" {status['engine_version']}")
            listed = cli.ok("servers")["servers"][0]
            assert (listed["run_id"], listed["state"], listed["adopted"]) == (
                status["run_id"],
                "ready",
                True,
            )
            result = self._bench(cli, status)
            assert result["conditions"]["argv"] == plan["argv"]
        finally:
            stopped = cli("stop", status["run_id"], timeout_s=120)
        assert (stopped.code, stopped.document["state"]) == (0, "stopped"), stopped
        assert cli.left() == []
        return result, status

    def _bench(self, cli: CommandLine, status: dict[str, Any]) -> dict[str, Any]:
        before = counts(self.engine, status["url"], status["run_dir"])
        if self.engine == "sglang":  # it also sends itself some requests when it starts
            assert before.requests >= 1 + PROMPTS_TOGETHER, before
        else:
            assert (before.requests, before.output_tokens) in _counts_of_the_probe(), before
        benched = cli("bench", status["run_id"], *self.shape, timeout_s=600)
        assert benched.code == 0 or not self.speaks, (benched.document, benched.err)
        result = benched.document
        theirs = counted_alike(self.engine, status, before, result)
        spec, requests = result["spec"], result["spec"]["requests"]
        assert (result["requests_ok"], result["requests_failed"], result["errors"]) == (
            requests,
            0,
            {},
        )
        assert theirs.requests == requests + spec["warmup"]
        assert theirs.output_tokens == (requests + spec["warmup"]) * spec["max_tokens"]
        assert (result["power_w"], result["simulated"]) == (None, False) and result["absent"][
            "power_w"
        ]
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            # on a busy machine many chunks come in one read, with no time between them
            figures = result[name]
            if figures is None:
                continue  # withheld: a busy machine could not time it exactly
            assert figures["mean"] > 0 <= figures["p50"] <= figures["p90"], name
            assert figures["p99"] is None or figures["p90"] <= figures["p99"], name
        assert result["whole_run_tok_s"] * result["duration_s"] == _about(result["output_tokens"])
        self._say(status, result, theirs)
        return result

    def _say(self, status: dict[str, Any], result: dict[str, Any], theirs: Counts) -> None:
        print(
            f"{self.engine} {status['engine_version']}: ready after {status['ready_after_s']:.1f} "
            "s; both counted"
            f" {theirs.requests} requests, {theirs.prompt_tokens} prompt and "
            f"{theirs.output_tokens} output tokens;"
            f" {result['output_tok_s']:.1f} tok/s; TTFT {result['ttft_ms']}, ITL"
            f" {result['itl_ms']}; {'; '.join(result['notes'])}"
        )

    def _compared(self, cli: CommandLine, a: dict[str, Any], b: dict[str, Any]) -> None:
        flag, value = self.change
        found = cli.ok("compare", a["id"], b["id"])
        assert [(d["name"], d["b"]) for d in found["differences"]] == [(flag, value)], found[
            "differences"
        ]
        metrics = {m["metric"]: (m["a"], m["b"]) for m in found["metrics"]}
        assert metrics["output_tok_s"] == (a["output_tok_s"], b["output_tok_s"])

    def _exported(self, cli: CommandLine, result: dict[str, Any]) -> None:
        listed = cli.ok("results", "list")["results"]
        assert [r["id"] for r in listed] == [result["id"], result["id"] - 1]
        shown = cli.ok("results", "show", result["id"])
        assert Path(shown.pop("timeline")).is_file() and shown == result
        exported = cli.ok("results", "export", result["id"], "--format", "json")
        assert len(exported["samples"]) == result["requests_ok"]
        assert self.engine in cli.ok("results", "export", result["id"], "--format", "md")["text"]


def _about(value: float) -> object:
    import pytest

    return pytest.approx(value, rel=1e-3)


def _counts_of_the_probe() -> set[tuple[int, int]]:
    """Return the requests and output tokens that the proof of readiness may take. It is a prompt
    alone, a second one if its answer is odd, and eight at once; then four longer ones if the server
    is not slow; then eight more of a model that does not follow."""
    found = set()
    for alone in (1, 2):
        short = alone + PROMPTS_TOGETHER
        for longer in (0, LONGER_ANSWERS, LONGER_ANSWERS + MORE_LONGER_ANSWERS):
            found.add((short + longer, short * SHORT_ANSWER_TOKENS + longer * LONGER_TOKENS))
    return found

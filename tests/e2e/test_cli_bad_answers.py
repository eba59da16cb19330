"""The table of bad answers in docs/REFERENCE.md: what READY and a benchmark say to each kind, with
real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import answer_kinds
from support.serving import free_port

from tests.e2e.conftest import Cli
from workbench.session.bench.text_probe import TextProbe

LOAD = ("--concurrency", "16", "--requests", "32", "--max-tokens", "64", "--warmup", "0")
LOAD = (*LOAD, "--input-tokens", "300")
# kind -> (READY, exit code of the benchmark, code of its first finding)
TABLE = {
    "good": ("ready", 0, ""),
    "reasoning": ("ready", 0, ""),
    "marks": ("ready?", 3, "text.degenerate"),
    "one token": ("ready?", 3, "text.degenerate"),
    "phrase": ("ready?", 3, "text.degenerate"),
    "scripts": ("ready?", 3, "text.degenerate"),
    "replacement": ("ready?", 3, "text.degenerate"),
    "digits": ("ready?", 3, "text.degenerate"),
    "few words": ("ready?", 3, "text.degenerate"),
    "no spaces": ("ready?", 3, "text.degenerate"),
    "jumbled words": ("ready?", 3, "text.degenerate"),
    "random words": ("ready?", 3, "text.degenerate"),
    "equal": ("ready?", 3, "text.degenerate"),
    "near equal": ("ready?", 3, "text.degenerate"),
    "topic named": ("ready?", 3, "text.degenerate"),
    "refusals": ("ready?", 3, "text.degenerate"),
    "mixed up": ("ready?", 3, "text.mixed-up"),
    "empty": ("ready?", 3, "text.empty"),
    "usage only": ("ready?", 3, "text.empty"),
    "blank": ("ready?", 3, "text.degenerate"),
    "tool calls": ("ready?", 3, "text.empty"),
    "bytes": ("ready?", 3, "text.degenerate"),
    "echo": ("ready?", 3, "text.echo"),
    "marks only 2 at once": ("ready?", 3, "text.degenerate"),
    "marks only 8 at once": ("ready?", 3, "text.degenerate"),
    "marks only 16 at once": ("ready", 3, "text.degenerate"),
    "marks only long": ("ready", 3, "text.degenerate"),
    "marks only a fifth": ("ready", 3, "text.degenerate"),
    "after 40": ("ready?", 3, "text.degenerate"),
    "marks only measured": ("ready", 3, "text.degenerate"),
    "scripts only measured": ("ready", 3, "text.degenerate"),
    "phrase only measured": ("ready", 3, "text.degenerate"),
    "equal only measured": ("ready", 3, "text.degenerate"),
    "near equal only measured": ("ready", 3, "text.degenerate"),
    "paragraph only measured": ("ready", 3, "text.degenerate"),
    "paragraph": ("ready", 3, "text.degenerate"),
    "phrase of 70": ("ready?", 3, "text.degenerate"),
    "filtered": ("ready?", 3, "text.finish-reason"),
    "usage x2": ("ready", 3, "text.usage"),
    "usage x1.15": ("ready", 3, "text.usage"),
    "usage x1.15 only measured": ("ready", 0, ""),
    "prompts cut": ("ready", 3, "text.prompt-cut"),
    "several models": ("ready?", 3, "text.other-model"),
    "another model": ("ready", 0, "text.other-model"),
    "reasoning only": ("ready", 0, "text.reasoning-only"),
    "shuffled": ("ready", 0, "text.disorder"),
    "other language": ("ready", 0, "text.not-followed"),
    "template marks": ("ready", 0, "text.template"),
}


def started(cli: Cli, tmp_path: Path, kind: str) -> dict[str, Any]:
    program = answer_kinds.install(tmp_path / "bin", kind)
    words = ("--var", "model=org/tiny", "--executable", str(program), "--trust")
    ran = cli("start", "vllm-any", *words, "--set", f"port={free_port()}", "--wait", "--json")
    document: dict[str, Any] = ran.document
    assert ran.code == (3 if document["state"] == "ready?" else 0)
    return document


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLE)
def test_the_table_of_bad_answers(cli: Cli, tmp_path: Path, kind: str) -> None:
    server = started(cli, tmp_path, kind)
    benched = cli("bench", server["run_id"], *LOAD, "--json")
    found = benched.document["text"]["findings"]
    state, code, finding = TABLE[kind]
    assert (server["state"], benched.code) == (state, code), (server["text"], found)
    # an answer can be bad in more than one way: which is told first depends on the samples
    codes = {one["code"] for one in found}
    if kind == "echo":
        finding = min(codes & {"text.echo", "text.degenerate"}, default=finding)
    assert finding in codes if finding else not codes, (server["text"], found)


@pytest.mark.long
@pytest.mark.slow
def test_the_tokenizer_counts_answers_to_the_user_s_own_prompts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[object] = []
    before = TextProbe.send_prompts_before_load

    async def noted(self: TextProbe, spec: Any, count: Any = None) -> None:
        counts.append(count)
        await before(self, spec, count)

    monkeypatch.setattr(TextProbe, "send_prompts_before_load", noted)
    server = started(cli, tmp_path, "usage x1.15")
    own = tmp_path / "own.jsonl"
    asked = ({"prompt": f"Tell me about the river number {n}."} for n in range(32))
    own.write_text("\n".join(map(json.dumps, asked)))
    benched = cli("bench", server["run_id"], *LOAD[:-2], "--prompts", str(own), "--json")
    assert counts and None not in counts, benched.err
    (found,) = [f for f in benched.document["text"]["findings"] if f["level"] == "error"]
    assert (benched.code, found["code"]) == (3, "text.usage")

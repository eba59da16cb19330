"""Asks a server for text, which proves that it is ready, and records the answers in the run
directory, so that later Workbench processes need not ask again."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from dataclasses import replace

from workbench.hosts.base import FileError, Host
from workbench.model.errors import ServerError
from workbench.model.server_run import ServedText
from workbench.server import readiness, running_server_secrets
from workbench.server.run_directory import ReadyFacts, encode_ready
from workbench.server.watched_run import WatchedRun

FIRST_TIMEOUT_S = 300.0  # the first forward pass may compile kernels


async def check_and_record_readiness(host: Host, run: WatchedRun) -> bool:
    """Ask the server of a run for text. If it answers for the first time since its start, record in
    `run` and in ready.json that it is ready, and return True, otherwise False. Read its API key
    from the host if it needs one. Raises HostError if the host cannot be reached."""
    answer = await _ask_for_text(run)
    if answer.needs_key and run.api_key is None and run.engine is not None:
        run.api_key = await running_server_secrets.read_key_from_file(
            host, run.engine, run.record.command.workdir
        )
    is_known = run.facts.ready is not None
    if is_known or not answer.is_ready or answer.model is None:
        return False
    await _record_ready(
        host,
        run,
        replace(run.make_ready_facts(answer.model), text=_with_time_of_answer(run, answer.text)),
    )
    return True


async def probe_served_text_again(host: Host, run: WatchedRun) -> ServedText:
    """Ask the READY server of a run for text once more, record the answers in place of the former
    ones, and return them. Raises ServerError if it does not answer or is not READY, and HostError
    if the host cannot be reached."""
    ready, answer = run.facts.ready, await _ask_for_text(run)
    text = _with_time_of_answer(run, answer.text)
    if ready is None or text is None:
        raise ServerError(
            f"run {run.record.run_id} did not answer: {answer.reason or 'it is not READY'}",
            host=host.name,
            next_step=f"`workbench logs {run.record.run_id}` shows its log",
        )
    await _record_ready(host, run, replace(ready, text=text))
    return text


async def _ask_for_text(run: WatchedRun) -> readiness.ReadinessResult:
    assert run.engine is not None
    # with text_probe.py, see readiness.py
    await asyncio.to_thread(importlib.import_module, "workbench.model.answer_probe")
    from workbench.model.answer_probe import why_weights_may_lack_language

    answer = await readiness.check_readiness(
        (await run.connection()).ask,
        run.engine,
        first_timeout_s=FIRST_TIMEOUT_S,
        why_nonsense_is_expected=why_weights_may_lack_language(run.record.plan),
    )
    run.unanswered = answer.reason
    return answer


def _with_time_of_answer(run: WatchedRun, text: ServedText | None) -> ServedText | None:
    if text is None:
        return None
    return replace(text, unix_s=round(run.now_unix_s, 3))


async def _record_ready(host: Host, run: WatchedRun, ready: ReadyFacts) -> None:
    with contextlib.suppress(FileError):  # disk full: the next Workbench asks again
        await host.write_file(f"{run.run_dir}/ready.json", encode_ready(ready))
    run.facts = replace(run.facts, ready=ready)

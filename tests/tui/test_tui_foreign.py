"""The real session under the real screen: nothing that a host, a server, a file or an old database
says reaches the terminal raw, and no page of a plan shows a key."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from conftest import Driven
from support import made_results
from support.grid import grid
from support.hostile import EVIL, assert_safe

from workbench.model.errors import HostError
from workbench.model.json_records import to_json
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.results_db import ResultsDb
from workbench.tui.app import WorkbenchApp

WIRE = json.dumps(EVIL)[1:-1].encode()  # as a host writes it into its JSON


class HostileStream:
    """Return the agent's messages with another GPU name and driver version."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in self._inner.lines():
            yield line.replace(b"NVIDIA RTX", WIRE).replace(b"595.", WIRE)


def hostile(session: Session) -> Session:
    real = session.host.stream

    async def stream(argv: Sequence[str], **options: Any) -> Any:
        return HostileStream(await real(argv, **options))

    session.host.stream = stream  # type: ignore[method-assign]
    return session


def drive(scenario: Callable[[Driven], Awaitable[None]], session: Session) -> None:
    async def run() -> None:
        app = WorkbenchApp(session)
        async with app.run_test(size=(200, 50)) as pilot:
            await pilot.pause()
            await scenario(Driven(app, session, pilot))  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(run(), 60))


def safe(d: Driven) -> None:
    """Return everything that is sent to the terminal, with the texts in borders."""
    text = grid(d.app)
    assert_safe(text)
    assert not any(line.startswith("FORGED") for line in text.splitlines())
    for widget in d.app.screen.walk_children():
        assert_safe(f"{widget.border_title or ''}{widget.border_subtitle or ''}")


def evil_results() -> None:
    """Store a result as an early version did, which cleaned no text."""
    db = ResultsDb(paths.results_db())
    made = made_results.result()
    number = db.add(made.spec, replace(made.conditions, host="sim:rtx-pro-6000"), made.summary)
    fields = to_json(made)
    for name in ("host", "engine", "engine_version", "model", "driver_version"):
        fields["conditions"][name] = EVIL
    fields["conditions"]["flags"] = {EVIL: EVIL}
    fields["summary"]["notes"] = [EVIL]
    with sqlite3.connect(db.path) as raw:
        values = (
            json.dumps(fields["conditions"]),
            json.dumps(fields["summary"]),
            EVIL.replace("\ud800", ""),
            number,
        )
        raw.execute("UPDATE results SET conditions = ?, summary = ?, note = ? WHERE id = ?", values)
    raw.close()


@pytest.mark.slow
def test_a_hostile_host_and_an_old_database_put_nothing_on_the_terminal() -> None:
    own = paths.own_presets_dir()
    own.mkdir(parents=True)
    (own / "evil\x1b[2J\x9b31m.toml").write_text(
        f'title = "{EVIL[:4]}\\u001b[2J\\u009b31m"\nid = 3\n'
    )
    evil_results()
    session = hostile(Session.of_host(None, "rtx-pro-6000"))

    async def scenario(d: Driven) -> None:
        await d.until(lambda: session.state.telemetry and session.state.telemetry.infos, "GPUs")
        assert "FORGED" in session.state.telemetry.infos[0].name  # type: ignore[union-attr]
        await d.until(lambda: session.state.results and session.state.presets, "files")
        for pane in "123456":
            await d.press(pane)
            safe(d)
        for keys in (
            ("5", "enter"),
            ("escape", "i"),
            ("escape", "g"),
            ("escape", "question_mark"),
            ("escape",),
        ):
            await d.press(*keys)
            safe(d)
        session.core.notify_error(HostError(EVIL, host=EVIL))
        await d.press("1")
        safe(d)

    drive(scenario, session)


@pytest.mark.slow
def test_no_page_of_the_real_plan_shows_a_key() -> None:
    session = Session.of_host(None, "four-pcie")

    async def scenario(d: Driven) -> None:
        await session.plans.load_preset("vllm-qwen3-vl-2b-dp4")
        session.plans.set_flag("api-key", "SUPERSECRETVALUE1")
        session.plans.set_flag("hf-token", "short")
        session.plans.set_env("SSL_PASSPHRASE", "SUPERSECRETVALUE2")
        session.plans.set_env("TOKENIZERS_PARALLELISM", "surely-not")
        seen = ""
        for keys in (
            ("2",),
            ("v",),
            ("escape", "s"),
            ("escape", "a"),
            ("slash", *"apikey"),
            ("enter",),
            ("escape",),
        ):
            await d.press(*keys)
            assert "SUPERSECRET" not in d.text and "short" not in d.text, keys
            seen += d.text
        assert "api-key" in seen and "SSL_PASSPHRASE" in seen and "surely-not" in seen
        state = repr(session.state)
        assert "SUPERSECRET" not in state and "SUPERSECRET" in repr(
            session.plans.editor.launch_command()
        )

    drive(scenario, session)


@pytest.mark.slow
def test_enter_on_an_empty_secret_keeps_it() -> None:
    session = Session.of_host(None, "four-pcie")

    async def scenario(d: Driven) -> None:
        await session.plans.load_preset("vllm-qwen3-vl-2b-dp4")
        session.plans.set_flag("api-key", "kept-as-it-was")
        await d.press("2", "slash", *"api-key", "enter", "enter")
        assert session.plans.editor.plan.flag("api-key") == ["kept-as-it-was"]
        await d.press("slash", *"api-key", "enter", *"newkey", "enter")
        await d.until(
            lambda: session.plans.editor.plan.flag("api-key") == ["newkey"], "the new key"
        )

    drive(scenario, session)


@pytest.mark.slow
def test_a_stranger_s_preset_is_shown_before_its_first_start() -> None:
    own = paths.own_presets_dir()
    own.mkdir(parents=True)
    text = (
        (paths.shipped_presets_dir() / "vllm-any.toml")
        .read_text()
        .replace('id = "vllm-any"', 'id = "theirs"')
    )
    (own / "theirs.toml").write_text(f'{text}\n[env]\nLD_PRELOAD = "/opt/evil.so"\n')
    session = Session.of_host(None, "rtx-pro-6000")

    async def scenario(d: Driven) -> None:
        await d.until(lambda: session.state.presets, "presets")
        await session.plans.load_preset("theirs")
        await d.press("s")
        assert "Trust this preset?" in d.text and "/opt/evil.so" in d.text
        await d.press("escape")
        assert session.plans.untrusted_findings() and not session.state.servers
        await d.press("s")
        session.plans.trust_preset_parts()
        await d.press("escape", "s")
        assert "Trust this preset?" not in d.text and "Start vllm" in d.text

    drive(scenario, session)

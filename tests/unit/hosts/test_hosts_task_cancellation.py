"""A task that loses its cancellation is ended nevertheless."""

from __future__ import annotations

import asyncio

import pytest

from workbench.hosts import task_cancellation as ending


def test_a_loop_that_loses_a_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ending, "AGAIN_S", 0.01)
    lost = 0

    async def forgetful() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    async def main() -> asyncio.Task[None]:
        task = asyncio.ensure_future(forgetful())
        await asyncio.sleep(0)
        await asyncio.wait_for(ending.cancel_and_wait(task), 10)
        return task

    assert asyncio.run(main()).cancelled() and lost == 3


def test_our_own_cancellation_is_not_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is cancelled while it ends a slow task gets its own CancelledError."""

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.shield(asyncio.sleep(0.2))

    async def main() -> None:
        task = asyncio.ensure_future(slow())
        await asyncio.sleep(0)
        ender = asyncio.ensure_future(ending.cancel_and_wait(task))
        await asyncio.sleep(0)
        ender.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ender
        await asyncio.wait([task])

    asyncio.run(main())


def test_end_raises_the_tasks_error_and_accepts_an_ended_task() -> None:
    async def failing() -> None:
        raise ValueError("broken")

    async def done() -> None:
        return None

    async def main() -> None:
        for work, raises in ((failing(), True), (done(), False)):
            task = asyncio.ensure_future(work)
            await asyncio.wait([task])
            if raises:
                with pytest.raises(ValueError, match="broken"):
                    await ending.cancel_and_wait(task)
            else:
                await ending.cancel_and_wait(task)

    asyncio.run(main())

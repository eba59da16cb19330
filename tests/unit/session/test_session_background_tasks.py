"""Background tasks of a session at its close."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from workbench.hosts.local import LocalHost
from workbench.session.state_holder import StateHolder


def test_a_task_that_never_began_leaves_no_coroutine_behind() -> None:
    """The close of a session may cancel a task in the turn in which it was made."""

    async def work() -> None:
        pytest.fail("the task was cancelled before it began")

    async def scenario() -> None:
        core = StateHolder(LocalHost())
        core.spawn(work())
        await core.cancel_and_await_tasks()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert [str(one.message) for one in caught if one.category is RuntimeWarning] == []

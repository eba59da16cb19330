"""The terminal front end: draws the session's state, and calls the session's parts. It keeps no state of a host itself.

app, screen     the application of one host, and its main screen
fleet/          the application of several hosts
themed_app      what both applications share
bindings        the table of keys; controllers/ has the methods that they call
panes/          one file for each pane of the main screen
modals/         pages, forms and questions over the main screen
widgets/        the rows of the main screen, and the parts of panes and pages
cells           rows of text, and the base widget, which sends only changed cells to the terminal
bridge          repaints after changes of the session's state
services        messages and background work, for panes and controllers
screenshots     the pictures of the documentation
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.session.fleet import Fleet
    from workbench.session.session import Session
    from workbench.tui.app import WorkbenchApp
    from workbench.tui.textual_private import PlainEnd


def run(session: Session, *, mouse: bool | None = None) -> int:
    """Show the screen until the user leaves, and return the exit code. Raise InputError without a terminal.

    The session is opened after the first frame, and closed at the end. With `mouse` None the mouse is off under ssh,
    where it costs traffic and disables the selection of tmux.
    """
    import asyncio

    mouse = _prepare_terminal(mouse, "use the commands: workbench --help")
    with asyncio.Runner() as runner:
        app = runner.run(_load(session))(session)
        code = runner.run(app.run_async(mouse=mouse))
    return _code_of(app, code, session.state.host.name)


def _prepare_terminal(mouse: bool | None, instead: str) -> bool:
    """Prepare this process for a screen, and return whether the screen uses the mouse. Raise InputError, with the next
    step `instead`, without a terminal."""
    import gc
    import os
    import sys

    if os.environ.get("TERM") == "dumb" or not sys.stdin.isatty():
        from workbench.model.errors import InputError

        what = "TERM=dumb" if os.environ.get("TERM") == "dumb" else "standard input is not a terminal"
        raise InputError(f"the screen needs a terminal ({what})", next_step=instead)
    gc.disable()  # until the first frame is drawn: see __main__.py
    share_one_heap()
    return "SSH_CONNECTION" not in os.environ if mouse is None else mouse


def _code_of(app: PlainEnd, code: int | None, host: str) -> int:
    """Return the exit code of a screen that has ended, and report the defect that ended it, if any."""
    import sys

    if app.defect is not None:
        sys.stderr.write(_ended_text(app.defect, host))
        return 1
    return code or 0


def run_fleet(fleet: Fleet, *, mouse: bool | None = None) -> int:
    """Show several hosts until the user leaves, and return the exit code. Raise InputError without a terminal.

    A host that the user opens is shown on its ordinary screen. Leaving that screen comes back to the fleet, which is
    read all the time.
    """
    import asyncio

    mouse = _prepare_terminal(mouse, "use `workbench fleet --json`")
    with asyncio.Runner() as runner:
        return runner.run(_show_fleet(fleet, mouse))


async def _show_fleet(fleet: Fleet, mouse: bool) -> int:
    import asyncio
    import gc

    from workbench.session.session import Session
    from workbench.tui.fleet.app import FleetApp
    from workbench.tui.fleet.screen import FleetView

    view = FleetView()
    await fleet.open()
    try:
        while True:
            app = FleetApp(fleet, view)
            code = _code_of(app, await app.run_async(mouse=mouse), "fleet")
            if app.opened is None or code:
                return code
            gc.collect()  # the next screen's first frame freezes what is there
            session = await asyncio.to_thread(Session.of_host, app.opened)
            shown = (await _load(session))(session)
            code = _code_of(shown, await shown.run_async(mouse=mouse), app.opened)
            if code:
                return code
            gc.collect()
    finally:
        await fleet.close()


def share_one_heap() -> None:
    """Make all threads allocate from one heap of the C library. Each thread's own heap keeps what is freed, in all 4 MB
    of 44. Only glibc has this option; elsewhere nothing changes."""
    import ctypes

    m_arena_max = -8  # malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_arena_max, 1)


async def _load(session: Session) -> type[WorkbenchApp]:
    """Import the application in a thread, and open what the session can open before: neither waits for the other."""
    import asyncio
    import importlib

    await session.open(early=True)
    module = await asyncio.to_thread(importlib.import_module, "workbench.tui.app")
    found: type[WorkbenchApp] = module.WorkbenchApp
    return found


def _ended_text(defect: Exception, host: str) -> str:
    """Return the message for a screen that a defect has ended: the defect, the file with its details, and the next
    step."""
    from workbench.store.crash_files import defect_text

    text, details = defect_text(defect)
    again = "workbench" if host == "local" else f"workbench {host}"
    return (
        f"workbench: the screen ended: {text}\n"
        f"  {details}\n"
        "  Servers keep running. The guard reverts altered GPU settings (`workbench gpu status` shows them).\n"
        f"  next: open the screen again (`{again}`), and please report the details\n"
    )

"""The terminal user interface. It draws the state of a session, and calls the session for every
action on the host.

app, screen     the application that shows one host, and its main screen
fleet/          the application that shows several hosts
themed_app      the base class of both applications
theme, glyphs   styles and signs; no_color is for NO_COLOR
pane_layout     where the panes stand
unused_palette  what stands in place of a part of Textual that is not used; late_directories of a
                part that is loaded when it is used
alert_signals   what an alert does to the terminal: bell, notification of the desktop, title
bindings        the table of keys: each key runs a method of a controller
controllers/    the classes with these methods
panes/          the panes of the main screen, one per file
pages/          texts to read, in place of the panes
modals/         forms and questions, in a box over the main screen
widgets/        the other rows of the main screen, and the parts of panes and pages
block_rows      blocks of reports as rows
cells           rows of text, and the base widget, which sends only changed cells to the terminal
ansi_text       the escape sequences of cells; shown_frame sends only those that differ
formats         values as texts of few cells; countdown counts seconds left
bridge          draws the main screen again when the session's state changes
services        messages and background work, for panes and controllers
interfaces      screens and widgets as protocols, without importing their classes
clipboard       copies text
interval_histories the intervals that an experiment had after each pair
textual_private the uses of private names of Textual; quiet_driver reads keys with few wake-ups
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from workbench.tui.late_directories import LazyPlatformdirs
from workbench.tui.unused_palette import UnusedPalette

if TYPE_CHECKING:
    from workbench.session.fleet.fleet import Fleet
    from workbench.session.session import Session
    from workbench.tui.app import WorkbenchApp
    from workbench.tui.themed_app import ThemedApp

# before Textual is imported
sys.modules.setdefault(LazyPlatformdirs.REPLACED, LazyPlatformdirs(LazyPlatformdirs.REPLACED))
sys.modules.setdefault(UnusedPalette.REPLACED, UnusedPalette(UnusedPalette.REPLACED))


def run_screen(session: Session, *, mouse: bool | None = None) -> int:
    """Run the terminal user interface on a session until the user leaves, and return the exit code
    of the process. Raise InputError if standard input is not a terminal.

    `mouse` says whether Workbench reads the mouse. With None it does, except under SSH, where mouse
    reports cost traffic and prevent the user from selecting text with tmux.
    """
    import asyncio

    _prepare_terminal("use the commands: workbench --help")
    mouse = _should_read_mouse(mouse)
    with asyncio.Runner() as runner:
        app = runner.run(_load_application(session))(session)
        code = runner.run(app.run_async(mouse=mouse))
    return _report_crash_and_return_code(app, code, session.state.host.name)


def _should_read_mouse(mouse: bool | None) -> bool:
    """Return whether Workbench reads the mouse: `mouse` or, if it is None, true except under
    SSH."""
    import os

    if mouse is None:
        return "SSH_CONNECTION" not in os.environ
    return mouse


def _prepare_terminal(next_step_on_error: str) -> None:
    """Prepare this process for drawing a screen. If standard input is not a usable terminal, raise
    InputError with `next_step_on_error`, which says what the user can do instead."""
    import gc
    import os

    what = ""
    if os.environ.get("TERM") == "dumb":
        what = "TERM=dumb"
    elif not sys.stdin.isatty():
        what = "standard input is not a terminal"
    if what:
        from workbench.model.errors import InputError

        raise InputError(f"the screen needs a terminal ({what})", next_step=next_step_on_error)
    gc.disable()  # until the first frame is drawn: see __main__.py
    share_one_malloc_arena()


def _report_crash_and_return_code(app: ThemedApp, code: int | None, host: str) -> int:
    """Return the exit code of the process after the application `app` has ended: `code`, or 0 for
    None. If an unexpected exception ended `app`, write a message about it, with the host named
    `host`, to standard error, and return 1."""

    if app.hung_up:
        _redirect_output_to_devnull()
    if app.defect is not None:
        sys.stderr.write(_crash_message(app.defect, host))
        return 1
    return code or 0


def _redirect_output_to_devnull() -> None:
    """Direct the standard output and error to /dev/null, because the terminal is gone. Python would
    end with the exit code 120 if it could not write its remaining output."""
    import os

    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def run_fleet(fleet: Fleet, *, mouse: bool | None = None) -> int:
    """Show several hosts until the user leaves, and return the exit code of the process. Raise
    InputError if standard input is not a terminal.

    If the user opens a host, show the main screen of that host, and afterwards all hosts again.
    Meanwhile the telemetry of all hosts is still read.
    """
    import asyncio

    _prepare_terminal("use `workbench fleet --json`")
    mouse = _should_read_mouse(mouse)
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
            code = _report_crash_and_return_code(app, await app.run_async(mouse=mouse), "fleet")
            if app.opened is None or code:
                return code
            gc.collect()  # the next screen's first frame freezes what is there
            session = await asyncio.to_thread(Session.of_host, app.opened)
            shown = (await _load_application(session))(session)
            code = _report_crash_and_return_code(
                shown, await shown.run_async(mouse=mouse), app.opened
            )
            if code:
                return code
            gc.collect()
    finally:
        await fleet.close()


def share_one_malloc_arena() -> None:
    """Make all threads of this process share one malloc arena, which saves 4 of 44 MB. With several
    arenas, a thread cannot use the memory that was freed in the arena of another thread. Do nothing
    if the C library has no `mallopt`."""
    import ctypes

    m_arena_max = -8  # malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_arena_max, 1)


async def _load_application(session: Session) -> type[WorkbenchApp]:
    """Import the application in a thread, and return its class. Before the import, let the session
    start the telemetry agent of this machine, so that the first reading arrives about when the
    screen is ready."""
    import asyncio
    import importlib

    await session.open(before_screen=True)
    module = await asyncio.to_thread(importlib.import_module, "workbench.tui.app")
    found: type[WorkbenchApp] = module.WorkbenchApp
    return found


def _crash_message(error: Exception, host: str) -> str:
    """Return the message for a user whose screen the unexpected exception `error` has ended. The
    message names the exception, the file with its traceback, and the command that opens the screen
    on the host `host` again."""
    from workbench.store.crash_files import internal_error_message_and_details

    text, details = internal_error_message_and_details(error)
    again = "workbench" if host == "local" else f"workbench {host}"
    return (
        f"workbench: the screen ended: {text}\n"
        f"  {details}\n"
        "  Servers keep running. The guard reverts altered GPU settings (`workbench gpu status` "
        "shows them).\n"
        f"  next: open the screen again (`{again}`), and please report the details\n"
    )

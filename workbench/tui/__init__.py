"""The terminal front end: draws the session's state, and calls the session's parts. It keeps no state of a host itself.

app, screen     the application and its main screen
bindings        the table of keys; controllers/ has the methods that they call
panes/          one file for each pane of the main screen
modals/         pages, forms and questions over the main screen
widgets/        rows of the main screen, and what panes and pages draw
cells           the base of all that is drawn: only the cells that changed are sent to the terminal
bridge          from changes of the session to repaints
services        messages and work beside the screen, for panes and controllers
screenshots     the pictures of the documentation
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.session.session import Session


def run(session: Session, *, mouse: bool | None = None) -> int:
    """Show the screen until the user leaves, and return the exit code.

    The session is opened after the first frame, and closed at the end. With `mouse` None the mouse is off under ssh,
    where it costs traffic and disables the selection of tmux.
    """
    import gc
    import os
    import sys

    if os.environ.get("TERM") == "dumb" or not sys.stdin.isatty():
        from workbench.model.errors import InputError

        what = "TERM=dumb" if os.environ.get("TERM") == "dumb" else "standard input is not a terminal"
        raise InputError(f"the screen needs a terminal ({what})", next_step="use the commands: workbench --help")
    gc.disable()  # until the first frame is drawn: see __main__.py
    from workbench.tui.app import WorkbenchApp

    app = WorkbenchApp(session)
    if mouse is None:
        mouse = "SSH_CONNECTION" not in os.environ
    code = app.run(mouse=mouse)
    if app.defect is not None:
        sys.stderr.write(_ended_text(app.defect, session.state.host.name))
        return 1
    return code or 0


def _ended_text(defect: Exception, host: str) -> str:
    """Return the message after a defect: what happened, the file with the details, and the next step."""
    from workbench.store.crash_files import defect_text

    text, details = defect_text(defect)
    again = "workbench" if host == "local" else f"workbench {host}"
    return (
        f"workbench: the screen ended: {text}\n"
        f"  {details}\n"
        "  Servers keep running. The guard reverts altered GPU settings (`workbench gpu status` shows them).\n"
        f"  next: open the screen again (`{again}`), and please report the details\n"
    )

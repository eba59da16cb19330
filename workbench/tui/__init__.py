"""The terminal front end. It draws `SessionState` and asks things of `Session`, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.session.session import Session


def run(session: Session, *, mouse: bool | None = None) -> int:
    """Show the screen until the person leaves; the exit code. `mouse` None: off under ssh, where it costs traffic and
    takes tmux's selection away, else on. The session is opened once the first frame stands, and closed at the end."""
    import gc
    import os
    import sys

    if os.environ.get("TERM") == "dumb" or not sys.stdin.isatty():
        from workbench.model.errors import InputError

        what = "TERM=dumb" if os.environ.get("TERM") == "dumb" else "standard input is not a terminal"
        raise InputError(f"the screen needs a terminal ({what})", next_step="use the commands: workbench --help")
    gc.disable()  # until the first frame stands: __main__.py
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
    """What happened, where the details are, what lives on, and how to go on."""
    from workbench.store.crash_files import defect_text

    text, details = defect_text(defect)
    again = "workbench" if host == "local" else f"workbench {host}"
    return (
        f"workbench: the screen ended: {text}\n"
        f"  {details}\n"
        "  Servers keep running. The guard gives altered GPU settings back (`workbench gpu status` shows them).\n"
        f"  next: open the screen again (`{again}`), and please report the details\n"
    )

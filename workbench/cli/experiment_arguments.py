"""Arguments of experiment and sweep."""

from __future__ import annotations

from workbench.cli.arguments import Commands


def experiments(sub: Commands) -> None:
    pass

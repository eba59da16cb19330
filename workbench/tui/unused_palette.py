"""A stand-in for Textual's command palette, which Workbench does not use."""

from __future__ import annotations

from types import ModuleType


class UnusedPalette(ModuleType):
    """A module in place of `textual.command`, which loads eight widgets and their types: 1.2 MiB.
    Textual's other modules only derive from its classes and name them. `themed_app.py` disables the
    palette, so nothing makes an object of these classes. To make one raises TypeError."""

    REPLACED = "textual.command"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):  # what the import system asks of each module
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.REPLACED, "__init__": _raise_type_error})
        setattr(self, name, made)
        return made


def _raise_type_error(self: object, *_: object, **__: object) -> None:
    raise TypeError(f"{type(self).__name__}: Workbench does not load the palette of Textual")

"""NamedTuple without the module typing, which takes half a MiB of a process that runs for days.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Maker(type):
        """Makes a named tuple of a class body, from its annotations, defaults and methods."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body["__annotations__"])
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key == "__doc__" or not (key in fields or key.startswith("__")):
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Maker):
        """The base class of a named tuple, as typing.NamedTuple is one."""

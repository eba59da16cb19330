"""`dataclass` of the standard library, for classes whose methods are made when they are needed.

The standard library compiles five to eight methods for each class. That takes 0.4 ms and 15 KiB,
for hundreds of classes of which a command or a screen uses a few. Here `__init__` is compiled when
the first object of its class is made, and the other methods are the same for all classes.

Fields, slots and all functions of the module dataclasses are the standard library's. The options
`order` and `init`, and `InitVar`, are not known here. A host runs this module with Python 3.8.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
    from typing import Any

_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY")
_set_attribute = object.__setattr__


def _dataclass(cls: Any = None, /, **options: bool) -> Any:
    if cls is None:
        return lambda cls: _add_lazy_methods(cls, **options)
    return _add_lazy_methods(cls)


if not TYPE_CHECKING:
    dataclass = _dataclass


def _add_lazy_methods(cls: Any, *, frozen: bool = False, eq: bool = True, **options: bool) -> Any:
    """Return the class, made by the standard library without methods, with its methods."""
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard library would inspect the signature
    said = _replace_plain_annotations(vars(cls).get("__annotations__", {}))
    made = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
    vars(made).get("__annotations__", {}).update(said)
    for name, annotation in said.items():
        made.__dataclass_fields__[name].type = annotation
    methods: dict[str, Any] = {"__init__": _lazy_init(made, frozen), "__repr__": _repr}
    if eq:
        methods.update(__eq__=_equal, __hash__=_hash if frozen else None)
    if frozen:
        methods.update(__setattr__=_refuse_to_set, __delattr__=_refuse_to_delete)
    if frozen and options.get("slots"):
        methods.update(__getstate__=_state, __setstate__=_set_state)
    own = frozenset(vars(made))
    for name in methods.keys() - own:
        setattr(made, name, methods[name])
    return made


def _replace_plain_annotations(annotations: dict[str, Any]) -> dict[str, str]:
    """Replace each annotation that is a text without a word of _SPECIAL by a type, and return these
    texts by field. The standard library would search each text three times for special types,
    which takes a third of the time to make a class."""
    plain = {
        name: annotation
        for name, annotation in annotations.items()
        if isinstance(annotation, str) and not any(map(annotation.__contains__, _SPECIAL))
    }
    annotations.update(dict.fromkeys(plain, object))
    return plain


def _lazy_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Return an `__init__` that, at its first call, compiles the real one and puts it in its own
    place."""

    def __init__(self: Any, *args: Any, **values: Any) -> None:
        compiled = _compile_init(cls, frozen)
        if vars(cls)["__init__"] is __init__:  # nobody has put another one around it
            cls.__init__ = compiled
        compiled(self, *args, **values)

    return __init__


def _compile_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Return a compiled `__init__` with a parameter for each field of the dataclass."""
    known: dict[str, Any] = {"_set_attribute": _set_attribute, "_absent": MISSING}
    words, words_by_name, lines = ["self"], ["*"], []
    for number, field in enumerate(dataclasses.fields(cls)):
        name, value, default = field.name, field.name, f"_default_{number}"
        word = f"{name}={default}"
        if field.default_factory is not MISSING:
            known[default] = field.default_factory
            word = f"{name}=_absent"
            value = f"{default}() if {name} is _absent else {name}"
        elif field.default is not MISSING:
            known[default] = field.default
        else:
            word = name
        if field.init:
            by_name = getattr(field, "kw_only", False)  # Python 3.8 has no such fields
            (words_by_name if by_name else words).append(word)
        elif default not in known:
            continue
        else:
            value = f"{default}()" if field.default is MISSING else default
        set_it = f"_set_attribute(self, {name!r}, {value})" if frozen else f"self.{name} = {value}"
        lines.append(set_it)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    words += words_by_name if len(words_by_name) > 1 else []
    # only names of fields are in it, as in the standard library
    source = f"def __init__({', '.join(words)}):\n " + "\n ".join(lines or ["pass"])
    exec(source, known)
    compiled: Callable[..., None] = known.pop("__init__")
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"  # an error about its arguments names it
    return compiled


def _make_values_getter(cls: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns, for an object of the class, the values by which such objects
    are compared. The function is kept in _GETTERS."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    if len(names) == 1:
        names *= 2  # for one name it would return no tuple
    get: Callable[[Any], tuple[Any, ...]] = attrgetter(*names) if names else lambda one: ()
    _GETTERS[cls] = get
    return get


_GETTERS: dict[Any, Callable[[Any], tuple[Any, ...]]] = {}


def _equal(self: Any, other: Any) -> Any:
    cls = self.__class__
    if other.__class__ is not cls:
        return NotImplemented
    get = _GETTERS.get(cls) or _make_values_getter(cls)
    return get(self) == get(other)


def _hash(self: Any) -> int:
    get = _GETTERS.get(self.__class__) or _make_values_getter(self.__class__)
    return hash(get(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [one.name for one in dataclasses.fields(self) if one.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{self.__class__.__qualname__}({values})"


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        _set_attribute(self, one.name, value)

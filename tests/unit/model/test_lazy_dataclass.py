"""A lazy dataclass does what that of the standard library does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

import pytest

from workbench.model import json_records, lazy_dataclass
from workbench.model.lazy_dataclass import dataclass

T = TypeVar("T")
Decorator = Callable[..., Any]
BOTH = pytest.mark.parametrize("made_by", [dataclasses.dataclass, dataclass])


@dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    x: int
    y: int = 0
    name: str = field(default="p", compare=False)
    tags: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """One value."""

    value: T


def shapes(made_by: Decorator) -> tuple[Any, ...]:
    @made_by(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    @made_by(slots=True)
    class Mutable:
        """Two fields, one of which is not an argument."""

        first: int
        second: list[int] = field(default_factory=lambda: [7], init=False)
        third: str = field(default="3", init=False)

    @made_by(frozen=True, slots=True, kw_only=True)
    class Base(ABC):
        """A base."""

        name: str
        limit: float | None = None

        @abstractmethod
        def told(self) -> str: ...

    @made_by(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        """Derived, with a check."""

        words: tuple[str, ...] = ()
        length: int = field(init=False, default=-1)

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.words))

        def told(self) -> str:
            return self.name

    @made_by
    class Loose:
        one: int
        two: int = 2

    return Empty, Mutable, Derived, Loose


def arguments() -> list[tuple[int, tuple[Any, ...], dict[str, Any]]]:
    return [
        (0, (), {}),
        (1, (1,), {}),
        (1, (), {"first": [1]}),
        (2, (), {"name": "n"}),
        (2, (), {"name": "n", "words": ("a", "b"), "limit": 0.5}),
        (3, (1,), {}),
        (3, (1, 5), {}),
        (3, (), {"two": 1, "one": 4}),
        # wrong ones
        (0, (1,), {}),
        (1, (), {}),
        (1, (1,), {"second": []}),
        (2, ("n",), {}),
        (3, (1, 2, 3), {}),
        (3, (1,), {"one": 1}),
    ]


def outcome(made: Callable[[], Any]) -> Any:
    try:
        one = made()
    except TypeError as error:
        return str(error)
    if not one.__hash__:
        told: Any = "not hashable"
    else:
        told = hash(one) == hash(copy.copy(one))
    values = dataclasses.asdict(one)
    return repr(one), values, told, one == copy.deepcopy(one), one == values, type(one).__doc__


@pytest.mark.parametrize(("which", "words", "by_name"), arguments())
def test_an_object_is_that_of_the_standard_library(
    which: int, words: tuple[Any, ...], by_name: dict[str, Any]
) -> None:
    kinds = [shapes(made_by)[which] for made_by in (dataclasses.dataclass, dataclass)]
    for _ in range(2):  # compiled by the first, and called by the second
        expected, found = [outcome(lambda k=kind: k(*words, **by_name)) for kind in kinds]
        if which == 3 and isinstance(expected, tuple):
            expected = (*expected[:-1], "Loose")  # the other one has its signature
        assert found == expected


@pytest.mark.parametrize("slots", [False, True])
def test_fields_have_the_types_that_the_standard_library_gives_them(slots: bool) -> None:
    def fields_of(made_by: Decorator) -> Any:
        @made_by(slots=slots)
        class Base:
            first: int
            second: Point | None = None
            third: str = field(default="3", kw_only=True)
            shared: ClassVar[int] = 7

        @made_by(slots=slots)
        class Derived(Base):
            first: float
            fourth: bool = False

        for kind in (Base, Derived):
            for one in dataclasses.fields(kind):
                yield one.name, one.type, one.kw_only, one.default
            yield kind.__annotations__, get_type_hints(kind)

    assert [*fields_of(dataclass)] == [*fields_of(dataclasses.dataclass)]


@BOTH
def test_a_frozen_object_refuses_changes(made_by: Decorator) -> None:
    one = shapes(made_by)[2](name="n")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "m"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del one.name
    assert dataclasses.replace(one, name="m").name == "m"


def test_values_are_compared_hashed_and_matched() -> None:
    one, two = Point(1, 2, "a"), Point(1, 2, "b")
    assert one == two and one != Point(1, 3) and one != (1, 2, "a", [])
    assert {Named(1): "one"}[Named(1)] == "one" and Named(1) != Named(2)
    nan = float("nan")
    assert Named(nan) == Named(nan)  # as tuples of the same object are equal
    match one:
        case Point(x, y):
            assert (x, y) == (1, 2)
    assert repr(one) == "Point(x=1, y=2, name='a')"


def test_defaults_of_two_objects_are_not_shared() -> None:
    one, two = Point(1), Point(1)
    one.tags.append("t")
    assert two.tags == []


def test_objects_can_be_copied_pickled_and_read_from_json() -> None:
    one = Point(1, 2, "a", ["t"])
    for again in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert again == one and again.name == "a" and type(again) is Point
    assert json_records.from_json(Point, json_records.to_json(one)) == one


def test_an_object_that_contains_itself_has_a_text() -> None:
    loop: list[Any] = []
    one = Named(loop)
    loop.append(one)
    assert repr(one) == "Named(value=[...])"


def test_no_init_is_compiled_before_the_first_object(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = lazy_dataclass._compile_init

    def noted(cls: Any, frozen: bool) -> Callable[..., None]:
        compiled.append(cls.__name__)
        return real(cls, frozen)

    monkeypatch.setattr(lazy_dataclass, "_compile_init", noted)
    *_, Loose = shapes(dataclass)
    assert compiled == []
    assert [Loose(n).one for n in range(3)] == [0, 1, 2] and compiled == ["Loose"]

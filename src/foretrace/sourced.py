"""A number that somebody measured or chose, with its unit, what it refers to, and where it comes from.

Limits of rules and costs of the replay are such numbers: they compute as plain ones, and texts print them with their unit.
"""

from __future__ import annotations

from typing import Self

from foretrace.units import format_value

JUDGEMENT = "judgement"
ANY_DEVICE = "any"


class Sourced:
    """What a number refers to (`of`), its `source`, and the `devices` that it holds for."""

    of: str
    source: str
    devices: str

    def text(self) -> str:
        """The number with its unit."""
        raise NotImplementedError

    def __format__(self, spec: str) -> str:
        """Without a format, the number with its unit; with one, the plain number."""
        return super().__format__(spec) if spec else self.text()


class _SourcedFloat(Sourced, float):
    def __new__(cls, value: float, of: str, source: str, *, devices: str = ANY_DEVICE) -> Self:
        made = super().__new__(cls, value)
        made.of, made.source, made.devices = of, source, devices
        return made


class _SourcedInt(Sourced, int):
    def __new__(cls, value: int, of: str, source: str, *, devices: str = ANY_DEVICE) -> Self:
        made = super().__new__(cls, value)
        made.of, made.source, made.devices = of, source, devices
        return made


class Share(_SourcedFloat):
    """A part of something, from 0 to 1."""

    def text(self) -> str:
        """In per cent."""
        return f"{100 * float(self):.3g} %"


class Factor(_SourcedFloat):
    """How many times as much."""

    def text(self) -> str:
        """The plain number."""
        return f"{float(self):.4g}"


class Count(_SourcedInt):
    """How many."""

    def text(self) -> str:
        """With thousands apart."""
        return f"{int(self):,}"


class Nanoseconds(_SourcedInt):
    """How long."""

    def text(self) -> str:
        """In the unit that people would use."""
        return format_value("_ns", int(self)).replace(".00 ", " ").replace(".0 ", " ")


class Bytes(_SourcedInt):
    """How large."""

    def text(self) -> str:
        """In the unit that people would use."""
        return format_value("_bytes", int(self)).replace(".00 ", " ").replace(".0 ", " ")


def declared(namespace: dict[str, object]) -> dict[str, Sourced]:
    """The numbers of a module, by name: `least_share` of LEAST_SHARE."""
    return {
        name.lstrip("_").lower(): value for name, value in namespace.items() if isinstance(value, Sourced)
    }

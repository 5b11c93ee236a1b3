"""A resource as it travels: JSON or a binary payload, compressed with gzip."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from foretrace.deflate import stream
from foretrace.present.web import payload


@dataclass(frozen=True)
class Encoded:
    """A resource as it is sent: compressed with gzip."""

    body: bytes
    media_type: str


def encode(made: payload.Answer) -> Encoded:
    """A resource as bytes: JSON, or a binary payload as it is."""
    if isinstance(made, bytes):
        return Encoded(compress(made), "application/octet-stream")
    return Encoded(compress(to_json(made)), "application/json")


def to_json(value: Any) -> bytes:
    """JSON that every browser reads: no NaN, and lone surrogates as escapes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def compress(data: bytes) -> bytes:
    """Gzip at the level that costs less than it saves, even on one machine."""
    return stream.compress(data, 1, wbits=31)

"""Engines: one `map` from recordings to the bytes of their summaries, in processes here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from foretrace.errors import unknown
from foretrace.ranks.engines import local, on_ray
from foretrace.ranks.engines.outcome import Outcome

Map = Callable[[Sequence[str]], Iterator[Outcome]]


def engine(on: str) -> Map:
    """The `map` of `local`, `ray` (a cluster of this machine, or the one in RAY_ADDRESS) or `ray://HOST:PORT`."""
    if on == "local":
        return local.run
    if on == "ray" or on.startswith("ray://"):
        return lambda paths: on_ray.run(paths, address=None if on == "ray" else on)
    raise unknown(f"no engine {on!r}", on, ("local", "ray", "ray://HOST:10001"))

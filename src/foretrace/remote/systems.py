"""The file systems of fsspec, one for each scheme; the only file that knows fsspec, which is imported when a URL is asked for."""

from __future__ import annotations

import os
import threading
from typing import Any

from foretrace.errors import UsageError
from foretrace.remote.patience import answer_s, patience_s

# scheme -> the extra that reads it
EXTRAS = {"s3": "s3", "gs": "gcs", "http": "http", "https": "http", "memory": "http"}
# What in the environment says who asks, and through which proxy: another one is another client.
_ASKS_AS = (
    "AWS_",
    "GOOGLE_",
    "GCLOUD_",
    "CLOUDSDK_",
    "STORAGE_EMULATOR_HOST",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
_systems: dict[tuple[int, str, float, int], Any] = {}
_lock = threading.Lock()


def scheme_of(url: str) -> str:
    return url.partition("://")[0]


def plain(url: str) -> str:
    """The address as its file system writes it."""
    return str(system_of(url)._strip_protocol(url))


def system_of(url: str) -> Any:
    """The file system of an address, one for each process: fsspec's own are one for each thread."""
    scheme, patience = scheme_of(url), patience_s()
    asks_as = hash(tuple(sorted(each for each in os.environ.items() if each[0].upper().startswith(_ASKS_AS))))
    key = (os.getpid(), "http" if scheme == "https" else scheme, patience, asks_as)
    with _lock:
        if key not in _systems:
            _systems[key] = _made(scheme, patience)
        return _systems[key]


def open_whole(url: str) -> Any:
    """A file from its beginning to its end in one answer, which may take as long as it goes on."""
    if scheme_of(url) not in ("http", "https"):
        return system_of(url).open(url, block_size=0)
    import aiohttp

    patience = patience_s()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience, sock_read=patience)
    # With a size, which nothing reads here, fsspec does not ask for one first; that request takes no `timeout`.
    return system_of(url).open(url, block_size=0, size=1, timeout=timeout)


def _made(scheme: str, patience: float) -> Any:
    extra = EXTRAS[scheme]
    try:
        import fsspec

        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if scheme == "s3":
            waits = {"connect_timeout": patience, "read_timeout": patience, "retries": {"max_attempts": 2}}
            options["config_kwargs"] = waits
        elif scheme in ("http", "https"):
            import aiohttp

            options |= {
                "simple_links": False,
                "headers": {"Accept-Encoding": "identity"},
                "client_kwargs": {
                    "timeout": aiohttp.ClientTimeout(
                        total=answer_s(), sock_connect=patience, sock_read=patience
                    ),
                    "trust_env": True,  # proxies
                    "auto_decompress": False,
                },
            }
        return fsspec.filesystem(scheme, **options)
    except ImportError:
        raise UsageError(f"{scheme}:// needs an extra: pip install 'foretrace[{extra}]'") from None

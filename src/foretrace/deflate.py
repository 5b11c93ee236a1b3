"""Deflate, CRC-32 and gzip by `stream`: isal where it is installed, else zlib, which gives the same and takes longer.

isal has no wheel for Windows on ARM. Both have the same functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import zlib as stream
else:
    try:
        from isal import isal_zlib as stream
    except ImportError:
        import zlib as stream

__all__ = ["stream"]

"""Deflate, CRC-32 and gzip by `stream`: isal where it is installed, else zlib, which gives the same and takes longer.

isal has no wheel for Windows on ARM. Both have the same functions.
"""

from __future__ import annotations

import zlib
from typing import Any

stream: Any = zlib
try:
    from isal import isal_zlib
except ImportError:
    pass
else:
    stream = isal_zlib

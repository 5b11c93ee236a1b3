"""zstd from the standard library, or its backport below Python 3.14."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdDecompressor, ZstdError, compress, decompress
else:
    from backports.zstd import CompressionParameter, ZstdDecompressor, ZstdError, compress, decompress

__all__ = ["CompressionParameter", "ZstdDecompressor", "ZstdError", "compress", "decompress"]

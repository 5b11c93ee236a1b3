"""Whose code a source file is: the user's, an installed package's, or that of torch, Python and Foretrace.

Loaded in the program that is recorded: standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from typing import Literal

Owner = Literal["user", "package", "library"]

_LIBRARY = re.compile(
    r"^<(?!ipython-input|stdin)|(?:^|/)(?:torch|torchgen|functorch)/|(?:^|/)foretrace/capture/|(?:^|/)torchinductor(?:_[^/]*)?/|/lib/python\d[^/]*/(?!(?:site|dist)-packages/)"
)
_PACKAGE = re.compile(r"(?:^|/)(?:site|dist)-packages/")
# torch records files relative to where modules are found, so that a package's path does not say that it is installed.
_PACKAGES = frozenset((
    "IPython", "PIL", "accelerate", "apex", "bitsandbytes", "cv2", "deepspeed", "dgl", "diffusers", "einops", "flash_attn",
    "fsspec", "huggingface_hub", "ipykernel", "jax", "lightning", "lightning_fabric", "lightning_utilities", "matplotlib",
    "megatron", "numpy", "pandas", "peft", "pydantic", "pytorch_lightning", "requests", "safetensors", "scipy", "sglang",
    "sklearn", "tensorboard", "timm", "tokenizers", "torch_geometric", "torchaudio", "torchmetrics", "torchtext",
    "torchvision", "tqdm", "transformer_engine", "transformers", "triton", "trl", "vllm", "wandb", "xformers",
))  # fmt: skip


@lru_cache(maxsize=4096)
def owner(file: str) -> Owner:
    """Whose file it is, by its name as torch records it; notebook cells and what nothing gives away are the user's."""
    name = file.replace("\\", "/")
    if _PACKAGE.search(name):
        inside = _PACKAGE.split(name)[-1]
        return (
            "library" if inside.startswith(("torch/", "torchgen/", "functorch/", "foretrace/")) else "package"
        )
    if _LIBRARY.search(name):
        return "library"
    top = name.partition("/")[0].removesuffix(".py")
    if _of_python(name, top):
        return "library"
    return "package" if top in _PACKAGES and "/" in name else "user"


def _of_python(name: str, top: str) -> bool:
    """Whether it is in the standard library; a program's own file may be called `test.py`."""
    if top not in sys.stdlib_module_names:
        return False
    return ("/" in name and top != "test") or os.path.isfile(os.path.join(os.path.dirname(os.__file__), name))


def of_user(file: str) -> bool:
    """Whether a file is the user's own."""
    return owner(file) == "user"

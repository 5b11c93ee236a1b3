"""The working tree stays small: a clone is quick, and it is copied to machines with a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_BYTES = 15_000_000


def test_the_tree_stays_small() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    sizes = {
        name: (ROOT / name).stat().st_size for name in listing.stdout.split("\0") if (ROOT / name).is_file()
    }
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    assert sum(sizes.values()) <= MOST_BYTES, (
        f"largest: {largest}; docs/accuracy.md says where large recordings live"
    )

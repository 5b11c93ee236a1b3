"""Requests tokenised one at a time in Python, which takes longer than the model itself.

`--batched` caches words that it has seen and answers several requests together.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from functools import lru_cache

import torch
from torch import nn

SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
PIECES = {piece: number for number, piece in enumerate(sorted({*SYLLABLES, *"abcdefghijklmnopqrstuvwxyz ."}))}
LENGTH = 256  # tokens of a request


def split_word(word: str) -> list[int]:
    """Joins the leftmost known pair of pieces until none is left, as byte-pair encoders do."""
    pieces = list(word)
    while True:
        pairs = [place for place in range(len(pieces) - 1) if pieces[place] + pieces[place + 1] in PIECES]
        if not pairs:
            return [PIECES[piece] for piece in pieces]
        place = pairs[0]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


split_word_once = lru_cache(maxsize=100_000)(split_word)


def tokenise(text: str, *, remember: bool) -> list[int]:
    split = split_word_once if remember else split_word
    tokens = [token for word in re.findall(r"\w+|\W", text) for token in split(word)]
    return (tokens + [0] * LENGTH)[:LENGTH]


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(PIECES), width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)).mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--batch", type=int, default=16, help="requests answered together, with --batched")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100, help="calls of the model")
    args = parser.parse_args()

    words = random.Random(0)
    known = ["".join(words.choices(SYLLABLES, k=words.randint(2, 5))) for _ in range(2000)]
    together = args.batch if args.batched else 1
    requests = [" ".join(words.choices(known, k=80)) + "." for _ in range(64)]
    model = Classifier(args.width).to(args.device).eval()
    began = time.perf_counter()
    with torch.inference_mode():
        for step in range(args.steps):
            chosen = [requests[(step * together + each) % len(requests)] for each in range(together)]
            tokens = [tokenise(text, remember=args.batched) for text in chosen]
            model(torch.tensor(tokens, device=args.device)).argmax(dim=1).cpu()
    seconds = time.perf_counter() - began
    print(f"{seconds / args.steps * 1e3:.2f} ms per step, {args.steps * together / seconds:.0f} requests/s")


if __name__ == "__main__":
    main()

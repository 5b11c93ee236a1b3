"""A program that handles its secrets as badly as it can: in names of regions, addresses, exceptions, arguments, children."""

import base64
import os
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import record_function

ENDING = sys.argv[1]
SECRETS = [*(os.environ[name] for name in ("DB_PASSWORD", "DATABASE_URL", "NOTE", "DATA_KEY")), *sys.argv[3:]]
LATE = base64.b32decode(os.environ["CANARY_LATE"]).decode()
# Each secret verbatim, URL-encoded, in base64 after a user name, and as Python prints it.
NAMES = [
    *SECRETS,
    *(
        " ".join(
            (
                urllib.parse.quote(secret, safe=""),
                base64.b64encode(f"user:{secret}".encode()).decode(),
                repr(secret),
            )
        )
        for secret in SECRETS
    ),
]
torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"


def make_step(letters: str) -> Callable[[Callable[[], None]], None]:
    """A step whose Python frames have the secret in their names."""
    named = f"fetch_{letters}"
    scope: dict[str, Any] = {}
    exec(f"def {named}(step):\n    step()", scope)
    function: Callable[[Callable[[], None]], None] = scope[named]
    return function


def train(steps: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapped = make_step(sys.argv[3])

    def step() -> None:
        for name in NAMES:
            with record_function(f"region {name}"):
                torch.ones(2, device=device)
        optimizer.zero_grad()
        model(torch.randn(32, 64, device=device)).square().mean().backward()
        optimizer.step()

    for number in range(steps):
        wrapped(step)
        print("step", number + 1, flush=True)
        if ENDING == "late" and number == 30:
            os.environ["LATE_TOKEN"] = LATE
            NAMES.append(os.environ["LATE_TOKEN"])


def child() -> None:
    os.environ["CHILD_PASSWORD"] = LATE
    NAMES.append(os.environ["CHILD_PASSWORD"])
    train(40)


if __name__ == "__main__":
    print("pid", os.getpid(), flush=True)
    if ENDING == "late":  # read, and taken away, as careful programs do
        for name in ("DB_PASSWORD", "DATABASE_URL", "NOTE", "DATA_KEY"):
            del os.environ[name]
    if ENDING in ("fork", "spawn"):
        import multiprocessing

        context: Any = multiprocessing.get_context(ENDING)
        started = context.Process(target=child)
        started.start()
        started.join()
        train(3_000)
    elif ENDING == "ends early":
        train(14)
    elif ENDING == "raises":
        train(40)
        raise ValueError(f"no access with {SECRETS}")
    elif ENDING == "try":
        train(10**6)
    else:
        train(4_000)

"""Loaded by Python first, where this folder is on PYTHONPATH: imports packages, then waits for its turn on the GPU.

HOLD names two files by comma: the first is made once the packages of HOLD_PRELOAD (by commas) are imported, the turn has
come when the second appears. The program itself is unchanged, and the processes that it starts do not wait.
"""

import os

_hold = os.environ.pop("HOLD", None)
if _hold:
    import importlib
    import time

    for _name in filter(None, os.environ.pop("HOLD_PRELOAD", "").split(",")):
        importlib.import_module(_name)
    _ready, _go = _hold.split(",")
    os.close(os.open(_ready, os.O_WRONLY | os.O_CREAT))
    _end = time.monotonic() + 600
    while not os.path.exists(_go):
        if time.monotonic() > _end:
            raise SystemExit("its turn never came")
        time.sleep(0.01)

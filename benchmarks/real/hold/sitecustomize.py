"""Loaded by Python first, where this folder is on PYTHONPATH: imports packages, then waits for its turn on the GPU.

HOLD_LOCK names the file whose lock is the turn (kept until the process ends; children do not inherit it), HOLD_PRELOAD the
packages to import before, by commas, HOLD_GOT a file that appears once the turn has come. The program itself is unchanged.
"""

import os

_lock = os.environ.pop("HOLD_LOCK", None)
if _lock:
    import importlib

    _got = os.environ.pop("HOLD_GOT")
    for _name in filter(None, os.environ.pop("HOLD_PRELOAD", "").split(",")):
        importlib.import_module(_name)
    import fcntl

    _file = os.open(_lock, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(_file, fcntl.LOCK_EX)
    os.close(os.open(_got, os.O_WRONLY | os.O_CREAT))

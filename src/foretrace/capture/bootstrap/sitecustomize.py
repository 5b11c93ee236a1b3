"""Loaded by the Python of a recorded program before anything else: arms the capture once torch is imported.

It must never break the program: whatever fails here is one line on stderr.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing costs every Python that the program starts
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _AfterImport:
    """Finds torch as if this were not there, and calls back when it has been loaded."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        loader: Any = spec.loader if spec is not None else None
        if hasattr(loader, "exec_module"):
            load = loader.exec_module

            def load_and_arm(module: object) -> None:
                del loader.exec_module
                load(module)
                _arm()

            loader.exec_module = load_and_arm
        return spec


def _arm() -> None:
    try:
        from importlib import import_module

        # A program that is tried is not recorded.
        name = f"foretrace.capture.{'trial' if os.environ.get('FORETRACE_TRIAL') else 'session'}"
        try:
            module = import_module(name)
        except ImportError:  # also of another version, which may have no such module
            _load_package()
            module = import_module(name)
        module.arm()
    except Exception as error:
        sys.stderr.write(f"foretrace: nothing will be recorded: {type(error).__name__}: {error}\n")


def _sample_lines(folder: str) -> None:
    """From here on: the package is not loaded, since every Python that the program starts would pay for it."""
    from importlib.machinery import ModuleSpec, SourceFileLoader

    name = "foretrace.capture.line_sampler"
    path = os.path.join(os.path.dirname(_FOLDER), "line_sampler.py")
    try:
        loader = SourceFileLoader(name, path)
        sys.modules[name] = module = type(sys)(name)
        module.__spec__, module.__file__ = ModuleSpec(name, loader, origin=path), path
        loader.exec_module(module)
        module.start(folder)
    except Exception as error:
        sys.modules.pop(name, None)
        sys.stderr.write(f"foretrace: no lines will be sampled: {type(error).__name__}: {error}\n")


def _load_package() -> None:
    """The foretrace that started the program, where its own Python has none (or another one)."""
    from importlib.util import module_from_spec, spec_from_file_location

    running = ("foretrace.capture.line_sampler", "foretrace._scan")  # of this package, for the lines
    for name in [
        each for each in sys.modules if each.partition(".")[0] == "foretrace" and each not in running
    ]:
        del sys.modules[name]
    package = os.path.dirname(os.path.dirname(_FOLDER))
    spec = spec_from_file_location(
        "foretrace", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["foretrace"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _run_the_other_one() -> None:
    """The sitecustomize that this one hides, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    paths = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("FORETRACE_LINES"):
    _sample_lines(os.environ["FORETRACE_LINES"])
if os.environ.get("FORETRACE_CAPTURE") or os.environ.get("FORETRACE_TRIAL"):
    sys.meta_path.insert(0, _AfterImport())
# The program sees the path it would have seen without Foretrace.
sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
_run_the_other_one()

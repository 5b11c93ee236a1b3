"""Patches of the program's DataLoaders: worker processes, pinned memory, batches ahead."""

from __future__ import annotations

import gc
import inspect
from abc import abstractmethod
from typing import Any

from foretrace.capture.patches import Patch, Proof, on_gpu, replaced


def live_iterators() -> list[Any]:
    """The iterators of DataLoaders with workers that are alive."""
    from torch.utils.data import dataloader

    kind = dataloader._MultiProcessingDataLoaderIter
    found = [item for item in gc.get_objects() if type(item) is kind]
    return [item for item in found if any(worker.is_alive() for worker in getattr(item, "_workers", ()))]


def batches_ahead() -> int:
    """Batches that may lie ready: steps that take these are quicker than the workers are."""
    return sum(item._num_workers * (item._prefetch_factor or 0) for item in live_iterators())


class LoaderPatch(Patch):
    """Changes the arguments of every DataLoader that is made."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self.changed = 0
        self.refused = ""

    def install(self) -> None:
        from torch.utils.data import DataLoader

        signature = inspect.signature(DataLoader.__init__)

        def wrapping(original: Any) -> Any:
            def __init__(loader: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    given = signature.bind(loader, *args, **kwargs)
                except TypeError:  # the program's own mistake: torch says what is wrong
                    return original(loader, *args, **kwargs)
                own = self.arguments(dict(given.arguments))
                given.arguments.update(own)
                self.changed += bool(own)
                return original(*given.args, **given.kwargs)

            return __init__

        replaced(DataLoader, "__init__", wrapping)

    @abstractmethod
    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """What to change of a loader's arguments; nothing where it does not fit."""

    def not_made(self) -> Proof:
        """Why nothing was changed."""
        return Proof(False, self.refused or "the program makes no DataLoader that this would change")


class Workers(LoaderPatch):
    """So many worker processes, which live on from epoch to epoch."""

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        from torch.utils.data import IterableDataset

        if isinstance(given.get("dataset"), IterableDataset):
            self.refused = "the dataset is iterable: each worker would bring all of its data again"
            return {}
        if (given.get("num_workers") or 0) >= self.value:
            self.refused = f"a DataLoader has {given['num_workers']} workers already"
            return {}
        return {"num_workers": self.value, "persistent_workers": True}

    def proof(self) -> Proof:
        alive = sum(worker.is_alive() for item in live_iterators() for worker in item._workers)
        if not self.changed:
            return self.not_made()
        if not alive:
            return Proof(False, "no worker is alive after the steps")
        what = "1 worker is" if alive == 1 else f"{alive} workers are"
        return Proof(True, f"{what} alive after the steps")


class PinMemory(LoaderPatch):
    """Batches lie in pinned memory."""

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("pin_memory"):
            self.refused = "the program's DataLoader pins its memory already"
            return {}
        return {"pin_memory": True}

    def proof(self) -> Proof:
        if not on_gpu():
            return Proof(False, "the program uses no GPU")
        return Proof(True, f"{self.changed} DataLoaders pin memory") if self.changed else self.not_made()


class Prefetch(LoaderPatch):
    """So many batches ahead for each worker."""

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        if not given.get("num_workers"):
            self.refused = "the program's DataLoader has no workers"
            return {}
        if (given.get("prefetch_factor") or 2) >= self.value:
            self.refused = "as many batches are made ahead already"
            return {}
        return {"prefetch_factor": self.value}

    def proof(self) -> Proof:
        now = [item._prefetch_factor for item in live_iterators()]
        if not self.changed or self.value not in now:
            return self.not_made()
        return Proof(True, f"workers make {self.value} batches ahead each")


class PersistentWorkers(LoaderPatch):
    """Workers live on from epoch to epoch."""

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        if not given.get("num_workers") or given.get("persistent_workers"):
            self.refused = "the program's DataLoader has no workers, or they live on already"
            return {}
        return {"persistent_workers": True}

    def proof(self) -> Proof:
        if not self.changed or not any(item._persistent_workers for item in live_iterators()):
            return self.not_made()
        return Proof(True, "workers live on after an epoch")

"""How many threads a copy of a zygote has: as many as a new interpreter would have by then.

A zygote imports with one thread, so that no pool is made that its copies would not have. A copy then gives the libraries that
are loaded the threads that a new interpreter would have told them by variables (`set_threads`). What the suite itself sets at
import holds in a new interpreter, so it must hold in a copy: `Asked` notices it, one thread included, which could not be told
afterwards from the zygote's own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from frostline.harness.isolation import thread_variables

VARIABLES = frozenset(thread_variables(1))
THREAD_SETTERS = {  # of libraries that have read their variables when they were loaded: in its file's name, what sets threads
    "gomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
    "iomp5": ("omp_set_num_threads",),
    "mkl_rt": ("MKL_Set_Num_Threads",),
    "openblas": tuple(
        f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "_64", "")
    ),
}


class Asked:
    """What is asked for while a suite is imported, within `with`.

    threads: of `torch.set_num_threads`, the last one; None where it was not called. variables: those about threads that were
    written, whatever was written.
    """

    def __init__(self) -> None:
        self.threads: int | None = None
        self.variables: list[str] = []
        self._plain: tuple[ModuleType, Any] | None = None

    def __enter__(self) -> Asked:
        asked, plain = self, type(os.environ)

        class Watched(plain):  # type: ignore[misc, valid-type]  # a class that is found when this runs
            def __setitem__(self, name: str, value: str) -> None:
                if name in VARIABLES and name not in asked.variables:
                    asked.variables.append(name)
                plain.__setitem__(self, name, value)

        os.environ.__class__ = Watched
        self._variables_of = plain
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = self._variables_of
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._plain is not None:
            module, function = self._plain
            module.set_num_threads = function  # type: ignore[attr-defined]  # of torch, which is not imported here

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """As one of `sys.meta_path`: let the others find torch, and listen from when it is there."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._listen(module)

            loader.exec_module = exec_module
        return spec

    def _listen(self, torch: Any) -> None:
        plain = torch.set_num_threads

        def set_num_threads(threads: int) -> None:
            plain(threads)
            self.threads = threads

        torch.set_num_threads = set_num_threads
        self._plain = torch, plain


def set_threads(threads: int, of_torch: int | None = None) -> None:
    """Give a copy its threads; those that torch was asked for, where it was, hold for torch and what it takes along."""
    for path in loaded_libraries():
        for name, setters in THREAD_SETTERS.items():
            if name in path.rpartition("/")[2]:
                library = ctypes.CDLL(path)
                for setter in setters:
                    if hasattr(library, setter):
                        getattr(library, setter)(ctypes.c_int(threads))
                        break
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads if of_torch is None else of_torch)


def loaded_libraries() -> list[str]:
    """The files of the shared libraries in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    return list(dict.fromkeys(path for path in paths if ".so" in path.rpartition("/")[2]))

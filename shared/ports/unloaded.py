"""Packages of which only some submodules are imported: client libraries import everything they have."""

import importlib
import importlib.util
import sys
from threading import RLock
from types import ModuleType
from typing import Any

KUBERNETES = ("kubernetes", "google.auth.transport.requests")
"""The Kubernetes client, and what it imports for its own credentials of Google's."""
_LOADING = RLock()


class _UnloadedPackage(ModuleType):
    """A package whose submodules can be imported while its ``__init__`` has not run yet."""

    _is_loading = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        if importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        with _LOADING:  # another thread gets no name of a package that is half loaded
            if type(self) is _UnloadedPackage:
                if self._is_loading:
                    raise AttributeError(name)
                self._is_loading = True
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    self._is_loading = False
                self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)


def leave_unloaded(*packages: str) -> None:
    """Let submodules of packages be imported without the packages' own modules, which import much more.

    The first use of anything else loads the whole package.
    """
    with _LOADING:  # two threads share one module
        for name in packages:
            if name in sys.modules:
                continue
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise ModuleNotFoundError(f"{name} is not installed; see requirements.txt")
            module = _UnloadedPackage(name)
            module.__spec__ = spec
            module.__path__ = list(spec.submodule_search_locations or ())
            module.__file__ = spec.origin
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent:  # as an import does: others name it by its parent
                setattr(sys.modules[parent], child, module)

"""Names of a package that are loaded when somebody asks for one: few need them, and everybody waits for an import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def names_later(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``.

    Parameters
    ----------
    package
        Its name.
    modules
        By name the module that has it, or is it.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        found: object = module if module.__name__ == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return get

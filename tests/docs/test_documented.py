"""Docstrings of the functions that the packages offer: each argument, what comes back, and that something is raised."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

PACKAGES = ("", ".arrow", ".catalog", ".identity", ".ops", ".report", ".share", ".snapshot", ".views")
ENGINES = (".flashinfer", ".lmcache", ".sglang", ".tensorrt_llm", ".transformers", ".vllm")
#: Where a docstring says that something is as elsewhere, it is described there.
ELSEWHERE = re.compile(r"\b[Aa]s( of)? (:\w+:|the class)")


def offered():
    """Every function once, under the first name that offers it."""
    found = {}
    for name in [f"hurray_arrow{each}" for each in (*PACKAGES, *(f".engines{engine}" for engine in ENGINES))]:
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", vars(module)):
            value = getattr(module, each)
            ours = inspect.isfunction(value) and value.__module__.startswith("hurray_arrow")
            if ours and not each.startswith("_") and (hasattr(module, "__all__") or value.__module__ == name):
                found.setdefault(value, f"{name}.{each}")
    return {name: function for function, name in found.items()}


OFFERED = offered()


def section(text, title):
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n-{{3,}}|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_there_are_functions_of_every_package():
    assert len(OFFERED) > 60


@pytest.mark.parametrize("name", OFFERED)
def test_docstring_is_complete(name):
    function, text = OFFERED[name], inspect.getdoc(OFFERED[name]) or ""
    signature = inspect.signature(function)
    described = section(text, "Parameters")
    names = [
        each.lstrip("*")
        for line in re.findall(r"^([\w*][\w*, ]*)$", described, re.MULTILINE)
        for each in line.split(", ")
    ]
    assert [each for each in signature.parameters if each not in names] == [] or (ELSEWHERE.search(text) and not names)
    if signature.return_annotation not in ("None", None):
        assert section(text, "Returns") or section(text, "Yields") or ELSEWHERE.search(text)
    if re.search(r"^    \s*raise \w", inspect.getsource(function), re.MULTILINE):
        assert section(text, "Raises")

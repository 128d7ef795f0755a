"""HRRYFILE containers (``.hrry``) through pyhurray: block-paged tensors out of them and into them.

A container keeps descriptors and buffers. What it has no place for, such as sequence lengths and layer names, goes into
one key of its key-value section, as JSON, and is taken from there again; pyhurray and others ignore it.

Spec: pgillet/hurray, file format; snapshot format, section 2, for the facts.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hurray_arrow import _json
from hurray_arrow.engines.hurray import imported_hurray, tensor_of, to_hurray
from hurray_arrow.engines.hurray_places import check_places
from hurray_arrow.errors import InvariantError, Problem, ProblemCode, UnsupportedError
from hurray_arrow.sequences import FACT_NAMES, MediaSpan, Sequences
from hurray_arrow.tensor import BlockPagedTensor

#: The key of the facts in a container's key-value section.
FACTS_KEY = "hurray_arrow.facts"
_FACTS_VERSION = 1
_MAX_FACTS_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Container:
    """What :func:`read_container` found.

    Parameters
    ----------
    tensors
        The block-paged tensors by name, in the file's order.
    metadata
        The snapshot's metadata that :func:`write_container` was given; empty for files of others.
    kv
        The file's key-value section, ours left out.
    skipped
        Names of tensors of other layouts, and the layouts.
    """

    tensors: dict[str, BlockPagedTensor]
    metadata: dict[str, Any] = field(repr=False)
    kv: dict[str, Any] = field(repr=False)
    skipped: dict[str, str]


def read_container(path: str | os.PathLike[str], *, skip_other_layouts: bool = False) -> Container:
    """Read the block-paged tensors of an HRRYFILE.

    Parameters
    ----------
    path
        The file. pyhurray reads all of it into memory.
    skip_other_layouts
        Leave tensors of other layouts out, and list them, instead of refusing the file.

    Returns
    -------
    Container
        Its tensors share pyhurray's memory. Device fields of their descriptors become the CPU's, as of
        :meth:`BlockPagedTensor.from_buffers`.

    Raises
    ------
    SnapshotCorruptError
        ``footer_invalid``, ``index_invalid``: a part of the container passes its end, or a descriptor is none.
    OSError
        pyhurray cannot read the file (``hurray.FileError``).
    UnsupportedError
        Tensors of other layouts, by name.
    InvariantError
        A tensor breaks the specification; ``metadata_invalid``: the facts cannot be read.
    MissingDependencyError
        pyhurray is not installed.
    """
    hurray = imported_hurray()
    check_places(path, descriptor=hurray.Descriptor)
    loaded, kv = hurray.load(os.fspath(path)), hurray.load_kv(os.fspath(path))
    layouts = {name: type(getattr(tensor, "layout", tensor)).__name__ for name, tensor in loaded.items()}
    others = {name: layout for name, layout in layouts.items() if layout != "BlockPagedLayout"}
    if others and not skip_other_layouts:
        listed = ", ".join(f"{name!r} ({layout})" for name, layout in others.items())
        raise UnsupportedError(f"{os.fspath(path)}: not block-paged: {listed}; skip_other_layouts=True leaves them out")
    facts = _parsed_facts(kv.pop(FACTS_KEY, None))
    tensors = {
        name: tensor_of(tensor, loaded=True, **facts["tensors"].get(name, {}))
        for name, tensor in loaded.items()
        if name not in others
    }
    return Container(tensors, facts["metadata"], kv, others)


def write_container(
    path: str | os.PathLike[str],
    tensors: Mapping[str, BlockPagedTensor] | Iterable[BlockPagedTensor],
    *,
    metadata: Mapping[str, Any] | None = None,
    kv: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write tensors to an HRRYFILE, which appears under its name when it is complete.

    Parameters
    ----------
    path
        The file, created 0600.
    tensors
        By name, or one after another: then they are named after layer, role and component, ``layers.3.key.values``.
        Pages that do not lie at a multiple of 64 bytes are copied for pyhurray, all others are written from where they
        are.
    metadata
        The snapshot's, kept with the facts about sequences in the key ``hurray_arrow.facts``.
    kv
        More of the file's key-value section.
    overwrite
        Replace an existing file.

    Raises
    ------
    FileExistsError
        The file exists and ``overwrite`` is False.
    InvariantError
        A tensor breaks the specification; ``tensor_key_duplicate``: two tensors have one name.
    OSError
        pyhurray cannot write (``hurray.FileError``).
    MissingDependencyError
        pyhurray is not installed.
    """
    hurray = imported_hurray()
    named = dict(tensors) if isinstance(tensors, Mapping) else _named(tensors)
    target = Path(os.path.realpath(path))
    if not overwrite and target.exists():
        raise FileExistsError(errno.EEXIST, "the container exists, and overwrite is False", str(target))
    section = {**(kv or {}), FACTS_KEY: _facts_text(named, metadata or {})}
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    # pyhurray truncates the file that is there, and so keeps the permissions it was made with.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        hurray.save(str(temporary), {name: to_hurray(tensor) for name, tensor in named.items()}, kv=section)
        if overwrite:
            temporary.replace(target)
        else:
            os.link(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _named(tensors: Iterable[BlockPagedTensor]) -> dict[str, BlockPagedTensor]:
    named: dict[str, BlockPagedTensor] = {}
    for tensor in tensors:
        layer = tensor.layer_name or ("no_layer" if tensor.layer_index is None else f"layers.{tensor.layer_index}")
        name = f"{layer}.{tensor.kv_role}.{tensor.component}"
        if name in named:
            problem = Problem(ProblemCode.TENSOR_KEY_DUPLICATE, name, "two tensors of one name; pass them by name")
            raise InvariantError(problem)
        named[name] = tensor
    return named


# -- facts as JSON -----------------------------------------------------------------------------------------------------


def _facts_text(named: Mapping[str, BlockPagedTensor], metadata: Mapping[str, Any]) -> str:
    groups: list[Sequences] = []
    tensors = {}
    for name, tensor in named.items():
        number = next((i for i, known in enumerate(groups) if known.equals(tensor.sequences)), len(groups))
        if number == len(groups):
            groups.append(tensor.sequences)
        original = tensor.original_descriptor
        tensors[name] = {
            "layer_name": tensor.layer_name,
            "component": tensor.component,
            "kv_group": tensor.kv_group,
            "original_descriptor": None if original is None else original.hex(),
            "sequences": number,
        }
    facts = {
        "version": _FACTS_VERSION,
        "metadata": metadata,
        "sequences": list(map(_plain, groups)),
        "tensors": tensors,
    }
    return _json.dumps(facts)


def _plain(sequences: Sequences) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(sequences, name) for name in FACT_NAMES}
    if sequences.seq_lens is not None and sequences.seq_lens_known is not None:
        pairs = zip(sequences.seq_lens.tolist(), sequences.seq_lens_known.tolist(), strict=True)
        values["seq_lens"] = [length if known else None for length, known in pairs]
    return {name: _plain_value(value) for name, value in values.items() if value is not None}


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, MediaSpan):
        return [value.first_token, value.num_tokens, value.digest]
    return list(map(_plain_value, value)) if isinstance(value, tuple | list) else value


def _parsed_facts(text: Any) -> dict[str, Any]:
    """Return ``metadata``, and by tensor the arguments that :meth:`BlockPagedTensor.from_buffers` takes."""
    if text is None:
        return {"metadata": {}, "tensors": {}}
    try:
        facts = _json.loads(text, max_bytes=_MAX_FACTS_BYTES)
        if facts["version"] != _FACTS_VERSION:
            raise UnsupportedError(
                f"{FACTS_KEY}: version {facts['version']!r:.20}, this library knows {_FACTS_VERSION}"
            )
        groups = [_sequences(plain) for plain in facts["sequences"]]
        tensors = {name: _arguments(plain, groups) for name, plain in facts["tensors"].items()}
        return {"metadata": dict(facts["metadata"]), "tensors": tensors}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, InvariantError):
            raise
        message = f"{type(error).__name__}: {error}"
        raise InvariantError(Problem(ProblemCode.METADATA_INVALID, FACTS_KEY, message)) from error


def _sequences(plain: dict[str, Any]) -> Sequences:
    values = {name: plain[name] for name in FACT_NAMES if name in plain}
    for name in ("token_ids", "page_positions"):
        if name in values:
            values[name] = [None if item is None else list(map(_integer, item)) for item in values[name]]
    if "seq_lens" in values:
        values["seq_lens"] = [None if item is None else _integer(item) for item in values["seq_lens"]]
    if "media" in values:
        values["media"] = [
            None if spans is None else [MediaSpan(_integer(a), _integer(n), digest) for a, n, digest in spans]
            for spans in values["media"]
        ]
    return Sequences(**values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40}, expected a text")
    return value


def _integer(value: Any) -> int:
    return _json.as_integer(value, what=FACTS_KEY)


def _arguments(plain: dict[str, Any], groups: list[Sequences]) -> dict[str, Any]:
    original = plain["original_descriptor"]
    return {
        "layer_name": None if plain["layer_name"] is None else _text(plain["layer_name"]),
        "component": _text(plain["component"]),
        "kv_group": None if plain["kv_group"] is None else _integer(plain["kv_group"]),
        "original_descriptor": None if original is None else bytes.fromhex(original),
        "sequences": groups[_integer(plain["sequences"])],
    }

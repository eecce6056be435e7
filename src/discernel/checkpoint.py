"""Arrays and JSON in one file: written whole or not at all, read without running anything in it."""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

FORMAT = 1
_KEY = "discernel"


class FileError(ValueError):
    """A file that is not ours, not whole, or newer than this version of the library."""


def write(path: str | os.PathLike, kind: str, arrays: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write arrays and JSON-able `meta` to a safetensors file, which at every moment holds the old or the new ones."""
    header = json.dumps({"format": FORMAT, "kind": kind, "meta": meta})
    content = save({name: a.detach().cpu().contiguous() for name, a in arrays.items()}, {_KEY: header})
    write_bytes(path, content)


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Replace the file at `path` by `content` in one step that survives a crash."""
    with whole(path) as temporary, open(temporary, "xb") as file:
        file.write(content)


@contextmanager
def whole(path: str | os.PathLike) -> Iterator[Path]:
    """Yield where to write a file, which gets its name, in one step that survives a crash, when it is whole.

    If nothing is written there, what is at `path` stays.
    """
    path = place(path)
    temporary = path.with_name(f".{path.name}.tmp")  # a fixed name: what a crash leaves is removed
    temporary.unlink(missing_ok=True)  # also a link that someone else has put there
    try:
        yield temporary
        if not temporary.exists():
            return
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


def place(path: str | os.PathLike) -> Path:
    """Return where a file is to go, if it can: its folder is there, and what it would replace is a file."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist: make it first")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is no file, but a folder or a device: give the name of a file")
    return path


def _flush(path: Path) -> None:
    """Have the system write a file, or the names of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str | os.PathLike, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the arrays and the meta data of a file that `write` made with the same `kind`."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()} if header else {}  # noqa: SIM118
    except (SafetensorError, OSError, struct.error, RuntimeError) as error:
        raise FileError(f"{path} is damaged or not a discernel file: {error}") from error
    if header is None:
        raise FileError(f"{path} is a safetensors file, but discernel did not write it")
    try:
        content = json.loads(header)
        version, found, meta = content["format"], content["kind"], dict(content["meta"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{path} has a header that cannot be read: {error!r}") from error
    if version != FORMAT:
        raise FileError(f"{path} has format {version!r}, this version reads format {FORMAT}: upgrade discernel")
    if found != kind:
        raise FileError(f"{path} holds a {found}, not a {kind}")
    return arrays, meta


def check_alike(tree: Any, like: Any, name: str = "its JSON") -> None:
    """Refuse JSON that is not made as other JSON is: the same keys and lengths, and numbers where there are numbers.

    Where there is nothing yet, there may be a number.

    Examples
    --------
    >>> check_alike({"a": [1.5, None]}, {"a": [2, None]})
    """
    if isinstance(like, dict):
        if not isinstance(tree, dict) or tree.keys() != like.keys():
            raise ValueError(f"{name} must have {sorted(like)}, got {tree!r}"[:200])
        for key, value in like.items():
            check_alike(tree[key], value, f"{name}.{key}")
    elif isinstance(like, list | tuple):
        if not isinstance(tree, list) or len(tree) != len(like):
            raise ValueError(f"{name} must have {len(like)} entries, got {tree!r}"[:200])
        for place, value in enumerate(like):
            check_alike(tree[place], value, f"{name}.{place}")
    elif _kind(tree) != _kind(like):
        raise TypeError(f"{name} must be a {_kind(like)}, got {tree!r}"[:200])


def _kind(value: Any) -> str:
    number = value is None or (isinstance(value, Real) and not isinstance(value, bool))
    return "number" if number else type(value).__name__


def flatten(prefix: str, tree: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors of nested dictionaries under dotted names."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        name = f"{prefix}.{key}"
        flat |= {name: torch.as_tensor(value)} if not isinstance(value, Mapping) else flatten(name, value)
    return flat


def branch(prefix: str, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays below a prefix, with the prefix taken off."""
    return {name.removeprefix(f"{prefix}."): a for name, a in flat.items() if name.startswith(f"{prefix}.")}

"""Checkpoint directories on disk: complete or absent, checked, listed. Knows no torch.

`checkpoints/step_000001200/` holds `state.pt` and `manifest.json`. It is written under a hidden
name beside it, every file synced, the manifest last, and appears with one rename: what has the
final name is complete, unless the storage itself tore it, which the manifest's sizes and checksums
show. Hidden names are left-overs of killed writers and never looked at.

The checksums are CRC-32: against torn files and flipped bits, not against people, at a third of the
cost of SHA-256 (0.37 s against 1.20 s for 1.5 GB on two x86 cores, Nov 2026).
"""

import errno
import json
import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hpcddp.errors import HpcddpError

STATE_FILE, MANIFEST_FILE = "state.pt", "manifest.json"
NOT_WRITTEN = "checkpoint_not_written"  # code of the error: the disk is full, or not there

_FORMAT = 1
_NAME = re.compile(r"step_(\d{1,18})")
_LEFT_OVER = re.compile(r"\.step_\d+\..+\.(partial|old)")
_READ_BYTES = 8 * 2**20


class CheckpointError(HpcddpError):
    """A checkpoint cannot be written, or is not what its manifest says."""

    def __init__(self, message: str, code: str = "bad_checkpoint") -> None:
        super().__init__(message, code)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A directory with the name of a checkpoint; nothing is said about what is in it."""

    path: Path
    step: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file must be like: its length, and the CRC-32 of its bytes as 8 hex digits."""

    size_bytes: int
    crc32: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says about itself; `extra` is the caller's own, JSON values only."""

    step: int
    files: Mapping[str, FileRecord]
    extra: Mapping[str, Any] = field(default_factory=dict)
    written_at: float = 0.0  # Unix seconds

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.files.values())


class ChecksummedFile:
    """A binary file that knows the length and CRC-32 of what was written to it in sequence."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size_bytes = self._crc32 = 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        self._size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._size_bytes, f"{self._crc32:08x}")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies in `folder`."""
    return folder / f"step_{step:09d}"


def list_checkpoints(folder: Path) -> list[CheckpointInfo]:
    """The checkpoints in `folder` by rising step (as numbers); anything else there is ignored."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = ((entry, _NAME.fullmatch(entry.name)) for entry in entries if entry.is_dir())
    found = (CheckpointInfo(folder / entry.name, int(name[1])) for entry, name in named if name)
    return sorted(found, key=lambda info: (info.step, info.path.name))


def is_checkpoint(path: Path) -> bool:
    """True for a directory that is, or was meant to be, one checkpoint; under any name."""
    return path.is_dir() and bool(_NAME.fullmatch(path.name) or (path / MANIFEST_FILE).exists())


def read_manifest(path: Path) -> Manifest:
    """What the checkpoint at `path` says about itself; CheckpointError if that is damaged."""
    file = path / MANIFEST_FILE
    try:
        body = json.loads(file.read_bytes())
        stated = body.pop("crc32")
        if body["format"] != _FORMAT:
            raise CheckpointError(f"{file}: format {body['format']}, this version reads {_FORMAT}.")
        if stated != _crc32_of(body):
            raise CheckpointError(f"{file} is damaged: its checksum does not match.")
        files = {name: FileRecord(**record) for name, record in body["files"].items()}
        return Manifest(body["step"], files, body["extra"], body["written_at"])
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {error!r}.") from error


def check_sizes(path: Path) -> Manifest:
    """The manifest, once every file is there with the right length. Reads no file but the manifest.

    Raises CheckpointError that names the file and what is wrong.
    """
    manifest = read_manifest(path)
    for name, record in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read: {error.strerror}.") from error
        if size_bytes != record.size_bytes:
            raise CheckpointError(
                f"{path / name} has {size_bytes} bytes, its manifest says {record.size_bytes}."
            )
    return manifest


def verify_checkpoint(path: Path) -> Manifest:
    """The manifest, once every byte of every file has been read and matches its checksum.

    Raises CheckpointError that names the file and what is wrong.
    """
    manifest = check_sizes(path)
    for name, record in manifest.files.items():
        crc32 = _crc32_of_file(path / name)
        if crc32 != record.crc32:
            raise CheckpointError(
                f"{path / name} is damaged: its CRC-32 is {crc32}, its manifest says "
                f"{record.crc32}."
            )
    return manifest


def make_folder(folder: Path) -> None:
    """Create the folder of a run's checkpoints, for good, in a run directory that is there."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        _sync_directory(folder.parent)


def start_partial(folder: Path, step: int) -> Path:
    """A new hidden directory beside where the checkpoint of `step` will appear."""
    partial = _hidden(checkpoint_path(folder, step), "partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an earlier try of this very process
    partial.mkdir()
    return partial


@contextmanager
def synced_file(path: Path) -> Iterator[ChecksummedFile]:
    """A new file that is on the disk, not only in memory, when the block ends."""
    with path.open("wb") as file:
        yield ChecksummedFile(file)
        file.flush()
        os.fsync(file.fileno())


def write_manifest(partial: Path, manifest: Manifest) -> None:
    """Write the manifest and sync the directory: `partial` is complete then."""
    body = {
        "format": _FORMAT,
        "step": manifest.step,
        "written_at": manifest.written_at or round(time.time(), 3),
        "files": {
            name: {"size_bytes": record.size_bytes, "crc32": record.crc32}
            for name, record in manifest.files.items()
        },
        "extra": dict(manifest.extra),
    }
    text = json.dumps(body | {"crc32": _crc32_of(body)}, indent=1)
    with synced_file(partial / MANIFEST_FILE) as file:
        file.write(text.encode())
    _sync_directory(partial)


def commit(partial: Path, final: Path) -> None:
    """Give `partial` its final name, for good; a damaged checkpoint of that name makes way."""
    if final.exists():
        remove_checkpoint(final)
    os.rename(partial, final)
    _sync_directory(final.parent)


def remove_left_overs(folder: Path) -> None:
    """Delete what other writers left in `folder`. Only for the one process that writes there.

    Each goes with one rename, so a writer that lives against all expectation cannot publish its.
    """
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if _LEFT_OVER.fullmatch(entry.name):
            with suppress(OSError):
                os.rename(entry.path, f"{entry.path}.old")
            shutil.rmtree(f"{entry.path}.old", ignore_errors=True)


def is_usable(path: Path) -> bool:
    """True if the checkpoint is whole by its sizes; no byte of it is read."""
    with suppress(CheckpointError):
        check_sizes(path)
        return True
    return False


def remove_checkpoint(path: Path) -> None:
    """Delete a directory so that a kill in the middle leaves nothing with a final name."""
    hidden = _hidden(path, "old")
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _hidden(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.{kind}")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems sync directories by themselves
            raise
    finally:
        os.close(descriptor)


def _crc32_of(body: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"


def _crc32_of_file(path: Path) -> str:
    crc32 = 0
    try:
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                crc32 = zlib.crc32(data, crc32)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    return f"{crc32:08x}"

"""Atomic writes, so that neither a reader nor a crash leaves half a file, and a cache.

The cache has folders that are built once: under a lock, under a temporary name, and renamed when whole. Each
folder has checksums of its files. A process checks them when it first opens the folder.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from pe_bench.errors import RunError, require
from pe_bench.system.terminal import say

TEMPORARY_PREFIX = ".partial-"
REPLACED_PREFIX = ".replaced-"
META = "meta.json"
CHECKSUM_KEY = "checksum"  # a key of meta.json: of its other values
NO_LOCKS_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of some network file systems
SET_CACHE_VARIABLE = "set PE_BENCH_CACHE to another folder"  # the way out for caches that no key moves
_compared: set[tuple[Any, ...]] = set()  # files of the cache that this process has checked


class Lock(filelock.FileLock):
    """A lock file, held by one process at a time. Raises `RunError` for a file system without locks."""

    def acquire(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().acquire(*arguments, **options)
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS_ERRNOS:
                raise
            folder = Path(self.lock_file).absolute().parent
            cause = getattr(error, "strerror", None) or error
            reason = f"the file system of {folder} has no locks ({cause})"
            raise RunError(f"{reason}: name a folder on another one, such as a local disk") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path next to `path`, flush the file to the disk, and rename it to `path`.

    Raises `RunError` for a file that cannot be written.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}")
    try:
        with name_write_errors(path):
            write(temporary)
            flush_to_disk(temporary)
            os.replace(temporary, path)
            flush_to_disk(path.parent)
    finally:
        with suppress(OSError):  # such as that of a read-only file system, which has no such file either
            temporary.unlink(missing_ok=True)


@contextmanager
def name_write_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, or any other error of writing, into a `RunError` that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, with the same line breaks on every system, so that hashes of the files agree."""
    write_atomically(path, lambda temporary: temporary.write_bytes(text.encode()))


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to `target` to fill; it replaces `target` at the end without an error.

    The old folder is deleted last. The next call puts it back if the process was killed before the new folder
    had its name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{target.name}")
    old = target.with_name(f"{REPLACED_PREFIX}{target.name}")
    try:
        with name_write_errors(target):
            _put_back(old, target)
            temporary.mkdir()
            yield temporary
            if target.is_dir():
                os.replace(target, old)
            os.replace(temporary, target)
            flush_to_disk(target.parent)
    finally:
        with suppress(OSError):
            _put_back(old, target)
        shutil.rmtree(temporary, ignore_errors=True)


def _put_back(old: Path, target: Path) -> None:
    """Delete a replaced folder `old`, or give it its name `target` again if no folder has the name."""
    if target.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    elif old.is_dir():
        os.replace(old, target)


def write_json(path: Path, values: Any) -> None:
    """Write values as indented JSON, atomically."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders that a killed process left in a folder, at any depth.

    A replaced folder gets its name back if the process was killed before the new folder had it. Only the
    process that holds the folder's lock may call this.
    """
    for old in sorted(folder.rglob(f"{REPLACED_PREFIX}*")):
        _put_back(old, old.with_name(old.name.removeprefix(REPLACED_PREFIX)))
    for leftover in sorted(folder.rglob(f"{TEMPORARY_PREFIX}*")):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Flush a file's bytes, or a folder's list of names, so that a power cut keeps them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The cache


def cache_root(cache_dir: str | None) -> Path:
    """Return `cache_dir`, else $PE_BENCH_CACHE, else the user's cache folder.

    Raises `UserError` for `~NAME` of an unknown user.
    """
    chosen = cache_dir or os.environ.get("PE_BENCH_CACHE")
    if not chosen:
        return platformdirs.user_cache_path("pe-bench")
    expanded = os.path.expanduser(chosen)
    name = "cache_dir" if cache_dir else "PE_BENCH_CACHE"
    user, _, _ = chosen[1:].partition("/")
    message = f"{name}={chosen}: no user {user!r} has a home folder here"
    require(not expanded.startswith("~"), f"{message}: give the full path, or ./{chosen}")
    return Path(expanded)


def cache_key(*parts: Any) -> str:
    """Return the name of a cache entry: a hash of `parts`, all values that decide its content."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cached_folder(
    root: Path, key: str, build: Callable[[Path], dict[str, Any]], *, way_out: str = "set another cache_dir"
) -> tuple[Path, dict[str, Any]]:
    """Return the folder `root/key` and the values of its meta.json, and build it first if needed.

    build: fills a folder and returns values for meta.json. A killed build leaves a temporary folder, which
    the next build removes; an entry with a missing or changed file is built again, with a warning. Raises
    `RunError`, with the `way_out`, for a cache that cannot be written.
    """
    entry = root / key
    if meta := _meta_if_undamaged(entry):
        return entry, meta
    try:
        root.mkdir(parents=True, exist_ok=True)
        with Lock(root / f"{key}.lock"):
            if meta := _meta_if_undamaged(entry):  # another process has built it while we waited
                return entry, meta
            if entry.exists():
                say(f"warning: {entry} is damaged and is built again")
            return entry, _build_entry(entry, build)
    except OSError as error:
        # numpy writes past Python's files: its error of a full disk has no `strerror`.
        reason = f"cannot be written ({error.strerror or error})"
        raise RunError(f"the cache folder {root} {reason}: {way_out}") from error


def cached_digest(path: Path, root: Path) -> str:
    """Return the sha256 of a file, kept in the cache by the file's path, size and times."""
    about = path.stat()
    key = cache_key(str(path.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    kept = root / "digests" / key
    with suppress(OSError):
        return kept.read_text(encoding="utf-8")
    digest = _file_digest(path)
    with suppress(OSError, RunError):  # a cache that is shared may be read-only
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, digest)
    return digest


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _meta_if_undamaged(entry: Path) -> dict[str, Any] | None:
    """Return the values of an entry's meta.json; None if a file of the entry is missing or changed.

    A process reads each file once.
    """
    try:
        meta = json.loads((entry / META).read_text(encoding="utf-8"))
        for name, digest in meta["files"].items():
            about = (entry / name).stat()
            version = (entry / name, about.st_ino, about.st_size, about.st_mtime_ns)
            if version not in _compared and _file_digest(entry / name) != digest:
                return None
            _compared.add(version)
        return meta if meta.pop(CHECKSUM_KEY) == cache_key(meta) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _build_entry(entry: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Build the folder `entry` of the cache, as `cached_folder` says; return its values for meta.json."""
    prefix = f"{TEMPORARY_PREFIX}{entry.name}-"
    for stale in entry.parent.glob(f"{prefix}*"):  # we hold the lock, so nobody is building it
        shutil.rmtree(stale)
    temporary = entry.with_name(prefix + secrets.token_hex(4))
    try:
        temporary.mkdir()
        meta = build(temporary)
        meta["files"] = {path.name: _file_digest(path) for path in sorted(temporary.iterdir())}
        write_text(temporary / META, json.dumps({**meta, CHECKSUM_KEY: cache_key(meta)}))
        for path in temporary.iterdir():
            flush_to_disk(path)
        shutil.rmtree(entry, ignore_errors=True)  # damaged, or it would have been used
        os.replace(temporary, entry)
        flush_to_disk(entry.parent)
        return meta
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

"""Folders that are built once: under a lock, beside their place, and renamed into it when whole.

Each has checksums of its files. A process checks them when it opens the folder for the first time.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from pe_bench.errors import RunError, UserError
from pe_bench.system.files import TEMPORARY, expand_path, flush_to_disk, write_text
from pe_bench.system.terminal import say

META, CHECKSUM = "meta.json", "checksum"
DIGEST = re.compile("[0-9a-f]{64}")
_compared: set[tuple[Any, ...]] = set()  # entries and their files that this process has checked


def cache_root(cache_dir: str | None) -> Path:
    """Return `cache_dir`, else $PE_BENCH_CACHE, else the user's cache folder."""
    if cache_dir:
        return expand_path(cache_dir, "cache_dir=")
    chosen = os.environ.get("PE_BENCH_CACHE")
    return expand_path(chosen, "PE_BENCH_CACHE=") if chosen else platformdirs.user_cache_path("pe-bench")


def key_of(*parts: Any) -> str:
    """Return the name of an entry: a hash of everything that its content follows from."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cached_folder(root: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder `root/key`, found, or built by `build`, which fills it and returns its `meta`.

    A build that is killed leaves a temporary folder, which the next one removes; an entry of which a
    file is missing or changed is built again, and a line says so. Raises `UserError` for a folder that
    cannot be written and `RunError` for a full disk.
    """
    entry = root / key
    if entry.exists() and not find_damage(entry):
        return entry
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / f"{key}.lock"):
            # Another process may have built it while we waited.
            damage = find_damage(entry) if entry.exists() else ""
            if damage:
                say(f"warning: {entry} is damaged ({damage}) and is built again")
            if damage or not entry.exists():
                _build(entry, build)
    except OSError as error:
        if _is_full(error):
            raise RunError(f"the disk of the cache folder {root} is full: set another cache_dir") from error
        reason = error.strerror or str(error)
        raise UserError(
            f"the cache folder {root} cannot be written ({reason}): set another cache_dir"
        ) from error
    return entry


def cached_digest(path: Path, root: Path) -> str:
    """Return the sha256 of a file, kept in the cache by the file's path, size and times."""
    about = path.stat()
    kept = root / "digests" / key_of(str(path.resolve()), about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    with suppress(OSError, ValueError):
        text = kept.read_text(encoding="utf-8")
        if DIGEST.fullmatch(text):
            return text
    digest = _digest(path)
    with suppress(OSError, RunError):  # a cache that is shared may be read-only
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, digest)
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_meta(entry: Path) -> dict[str, Any]:
    return json.loads((entry / META).read_text(encoding="utf-8"))


def find_damage(entry: Path) -> str:
    """Return what is damaged in an entry; empty where nothing is. A process reads each file once for it."""
    try:
        meta = read_meta(entry)
        if meta[CHECKSUM] != _digest_of_meta(meta):
            return f"{META} does not match its checksum"
        stats = {name: (entry / name).stat() for name in [META, *meta["files"]]}
        key = (
            entry,
            *((name, about.st_ino, about.st_size, about.st_mtime_ns) for name, about in stats.items()),
        )
        if key not in _compared:
            for name, digest in meta["files"].items():
                if _digest(entry / name) != digest:
                    return f"{name} does not match its checksum"
            _compared.add(key)
        return ""
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{META} cannot be read"


def _digest_of_meta(meta: dict[str, Any]) -> str:
    rest = {name: value for name, value in meta.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()


def _is_full(error: OSError) -> bool:
    # numpy writes past Python's files, and reports a full disk only in the text of its error.
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error).endswith(" written")


def _build(entry: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    prefix = f"{TEMPORARY}{entry.name}-"
    for stale in entry.parent.glob(f"{prefix}*"):  # we hold the lock, so nobody is building it
        shutil.rmtree(stale)
    temporary = entry.with_name(prefix + secrets.token_hex(4))
    try:
        temporary.mkdir()
        meta = build(temporary)
        meta["files"] = {path.name: _digest(path) for path in sorted(temporary.iterdir())}
        text = json.dumps({**meta, CHECKSUM: _digest_of_meta(meta)})
        (temporary / META).write_text(text, encoding="utf-8")
        for path in temporary.iterdir():
            flush_to_disk(path)
        if entry.exists():  # damaged, or it would have been used
            shutil.rmtree(entry)
        os.replace(temporary, entry)
        flush_to_disk(entry.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

"""Folders that are built once: under a lock, beside their place, and renamed into it when whole."""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from pe_bench.errors import RunError, UserError
from pe_bench.system.files import TEMPORARY, flush_to_disk

META = "meta.json"


def cache_root(cache_dir: str | None) -> Path:
    """Return `cache_dir`, else $PE_BENCH_CACHE, else the user's cache folder."""
    chosen = cache_dir or os.environ.get("PE_BENCH_CACHE") or platformdirs.user_cache_dir("pe-bench")
    return Path(chosen).expanduser()


def key_of(*parts: Any) -> str:
    """Return the name of an entry: a hash of everything that its content follows from."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cached_folder(root: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder `root/key`, found, or built by `build`, which fills it and returns its `meta`.

    A build that is killed leaves a temporary folder, which the next one removes; an entry of which a
    file is missing or cut short is built again. Raises `UserError` for a folder that cannot be written
    and `RunError` for a full disk.
    """
    entry = root / key
    if is_whole(entry):
        return entry
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / f"{key}.lock"):
            if not is_whole(entry):  # another process may have built it while we waited
                _build(entry, build)
    except OSError as error:
        if _is_full(error):
            raise RunError(f"the disk of the cache folder {root} is full: set another cache_dir") from error
        reason = error.strerror or str(error)
        raise UserError(
            f"the cache folder {root} cannot be written ({reason}): set another cache_dir"
        ) from error
    return entry


def read_meta(entry: Path) -> dict[str, Any]:
    return json.loads((entry / META).read_text(encoding="utf-8"))


def is_whole(entry: Path) -> bool:
    """Return whether every file that the entry's list names is there in its full size."""
    try:
        sizes = read_meta(entry)["files"]
        return all((entry / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


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
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        (temporary / META).write_text(json.dumps({**meta, "files": sizes}), encoding="utf-8")
        for path in temporary.iterdir():
            flush_to_disk(path)
        if entry.exists():  # damaged, or it would have been used
            shutil.rmtree(entry)
        os.replace(temporary, entry)
        flush_to_disk(entry.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

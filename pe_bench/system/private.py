"""Whether another user of the machine could have changed a file: asked before code is loaded from it."""

import os
import stat
from functools import cache
from pathlib import Path


def writable_by_others(path: Path) -> Path | None:
    """Return the first of a file and the folders above it that another user could change, or None.

    As ssh does for keys: each must belong to this user or to root, and be writable for nobody else. In a
    folder with the sticky bit, such as /tmp, others cannot touch what is not theirs. A link counts as what it
    points to.
    """
    if not hasattr(os, "getuid"):  # Windows has other means
        return None
    whole = path.resolve()
    return next((place for place in (whole, *whole.parents) if not _is_private(place)), None)


def _is_private(place: Path) -> bool:
    try:
        status = place.stat()
    except FileNotFoundError:  # whoever makes it will own it
        return True
    shared = status.st_mode & (stat.S_IWOTH if _is_own_group(status.st_gid) else stat.S_IWOTH | stat.S_IWGRP)
    return status.st_uid in (os.getuid(), 0) and (not shared or bool(status.st_mode & stat.S_ISVTX))


@cache
def _is_own_group(group: int) -> bool:
    """Return whether a group holds this user alone, as many systems make one for each user."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}

"""How an encoding is named in tables, and what makes it the same encoding."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench.encodings.load import changed_options, find_class, is_built_in, map_parts, source_file
from pe_bench.errors import UserError


def encoding_label(config: dict[str, Any], search: Sequence[Path] = ()) -> str:
    """What tables call it: `rope`, `rope+logn`, `rope base=500000.0` where options differ."""
    modifiers = config.get("modifiers") or {}
    words = ["+".join([_name(config["name"], config), *(_name(*pair) for pair in modifiers.items())])]
    words += [f"{option}={value}" for option, value in chosen_options(config, search).items()]
    for name, part in modifiers.items():
        words += [f"{name}.{option}={value}" for option, value in chosen_options(part, search).items()]
    return " ".join(words)


def first_name(part: dict[str, Any]) -> str:
    """Return the name that `compatible_with` uses: the module's, or for outside code the one in its YAML."""
    specification = str(part["class"])
    if is_built_in(specification):
        return specification.partition(":")[0].rpartition(".")[2]
    return str(part.get("name", specification))


def _name(name: str, part: dict[str, Any]) -> str:
    """A name, and for outside code four letters of its hash: another version is another encoding."""
    code = part.get("code_sha256")
    return f"{name}@{code[:4]}" if code else name


def chosen_options(part: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """The options that differ from the constructor's defaults and that nothing else decided."""
    derived = part.get("derived") or []
    return {name: value for name, value in changed_options(part, search).items() if name not in derived}


def encoding_identity(config: dict[str, Any], search: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """What of the encoding makes a run what it is: classes, the hash of outside code, options."""
    parts = [config, *(config.get("modifiers") or {}).values()]
    return [
        {
            # Where a file lies does not matter: its hash says what is in it.
            "class": part["class"] if is_built_in(part["class"]) else part["class"].rpartition(":")[2],
            "code": part.get("code_sha256"),
            "options": changed_options(part, search),
        }
        for part in parts
    ]


def with_code_hashes(config: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """The configuration with the hash of every class's source that is not pe-bench's own."""

    def hashed(part: dict[str, Any]) -> dict[str, Any]:
        specification = part["class"]
        if is_built_in(specification):
            return part
        if ":" not in specification:  # an entry point: keep what it stands for
            found = find_class(specification)
            specification = f"{found.__module__}:{found.__qualname__}"
        return {**part, "class": specification, "code_sha256": source_hash(specification, search)}

    return map_parts(hashed, config)


def with_trusted_code(config: dict[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """A run's configuration with its outside classes taken from `files`, which the user named.

    Raises `UserError` where a class is not pe-bench's own and no file has its hash: nothing that a
    run directory names is ever imported.
    """
    hashes = {hashlib.sha256(path.read_bytes()).hexdigest()[:16]: path for path in files}

    def trusted(part: dict[str, Any]) -> dict[str, Any]:
        specification, wanted = str(part["class"]), part.get("code_sha256")
        if is_built_in(specification):
            return part
        if wanted not in hashes:
            given = ", ".join(f"{path} has {own}" for own, path in hashes.items())
            as_it_was = "give the file as it was when the run was trained"
            way = as_it_was if given else "name its file with --code FILE.py"
            raise UserError(
                f"this run's encoding is code from outside pe-bench, {specification} with hash {wanted}"
                f"{'; ' if given else ''}{given}: {way}, if you trust it"
            )
        return {**part, "class": f"{hashes[wanted]}:{specification.rpartition(':')[2]}"}

    return map_parts(trusted, config)


def source_hash(specification: str, search: Sequence[Path] = ()) -> str:
    return hashlib.sha256(source_file(specification, search).read_bytes()).hexdigest()[:16]

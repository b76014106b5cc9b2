"""The slices of a run's targets, kept in a file beside its scores: which targets are in which slice.

What a slice is, `pe_bench.scoring.slices` says. The file follows from the text and from other scores, so a
lost or damaged one is as if there were none: `pe-bench eval RUN` writes it again.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from pe_bench.runs.rows import ALL, read_text
from pe_bench.runs.scores import metadata_in, write_tensors
from pe_bench.runs.untrusted import open_regular

RECALL, NOVEL, KEY = "recall", "novel", "key"
TEXT_SLICES = (RECALL, NOVEL)  # that the text alone decides
NAMES = (ALL, *TEXT_SLICES, KEY)
FILE = "slices.safetensors"
VERSION = 1  # of the definitions: raise it when other targets belong to a slice

Masks = Mapping[str, np.ndarray]  # by the name of a slice, bool [targets] in the order of their set


class KeptSlices:
    """The slices in a run's file, by the hash of their set of targets; none where it is lost or damaged."""

    def __init__(self, run: Path) -> None:
        self._masks: dict[str, Masks] = {}
        self._judges: dict[tuple[str, str], str] = {}
        with suppress(OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError):
            self._masks, self._judges = _read(run / FILE)
        self._hashes = {
            (target_hash, name): hash_of_mask(mask)
            for target_hash, masks in self._masks.items()
            for name, mask in masks.items()
        }

    def of(self, target_hash: str) -> Masks:
        return self._masks.get(target_hash, {})

    def judge(self, target_hash: str, name: str) -> str:
        """Return the run whose scores decided which targets are in a slice; empty where the text did."""
        return self._judges.get((target_hash, name), "")

    def hash_of(self, target_hash: str, name: str) -> str:
        """Return a hash of which targets are in a slice that is kept; empty for all targets."""
        return "" if name == ALL else self._hashes[target_hash, name]

    @property
    def sets(self) -> list[str]:
        return list(self._masks)

    @property
    def names(self) -> list[str]:
        """Return the slices that any set has."""
        return sorted({name for masks in self._masks.values() for name in masks})


def keep_slices(run: Path, found: Mapping[str, Masks], judge: str = "") -> None:
    """Add slices by the hash of their set to a run's file; only the holder of its lock may call this.

    judge: the run whose scores decided.
    """
    kept = KeptSlices(run)
    known, new = _flat({target_hash: kept.of(target_hash) for target_hash in kept.sets}), _flat(found)
    judges = {words: kept.judge(*words.split()) for words in known}
    if all(
        words in known and np.array_equal(known[words], mask) and judges[words] == judge
        for words, mask in new.items()
    ):
        return
    tensors = dict(sorted((known | new).items()))
    named = {words: name for words, name in sorted({**judges, **dict.fromkeys(new, judge)}.items()) if name}
    about = {"version": VERSION, "judges": named, "sha256": _checksum(tensors, named)}
    # One text, because the order of several in a header is left to chance.
    write_tensors(run / FILE, tensors, {"about": json.dumps(about)})


def hash_of_mask(mask: np.ndarray) -> str:
    return hashlib.sha256(mask.tobytes()).hexdigest()[:16]


def _flat(masks: Mapping[str, Masks]) -> dict[str, np.ndarray]:
    """Return the masks by the names that they have in a file."""
    return {f"{target_hash} {name}": mask for target_hash, own in masks.items() for name, mask in own.items()}


def _read(path: Path) -> tuple[dict[str, Masks], dict[tuple[str, str], str]]:
    """Return the masks and the judges in a file. Raise an error of many kinds for one that is damaged."""
    with open_regular(path) as file:
        content = file.read()
    about, tensors = json.loads(metadata_in(content)["about"]), load(content)
    if about["version"] != VERSION or about["sha256"] != _checksum(tensors, about["judges"]):
        raise ValueError("it is of another version, or its numbers are not those of its checksum")
    found: dict[str, dict[str, np.ndarray]] = {}
    judges: dict[tuple[str, str], str] = {}
    for words, mask in tensors.items():
        target_hash, name = words.split()
        if mask.dtype != bool or mask.ndim != 1:
            raise ValueError(f"{words} says of no target whether it is in a slice")
        found.setdefault(target_hash, {})[name] = mask
        judges[target_hash, name] = read_text(about["judges"].get(words, ""), "judge")
        read_text(name, "slice")
    return dict(found), judges


def _checksum(tensors: Mapping[str, np.ndarray], judges: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(judges).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()

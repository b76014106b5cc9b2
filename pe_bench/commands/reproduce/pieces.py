"""The pieces of a study that are stored beside its file: the rows of their runs, without the runs.

A piece is one encoding of one sweep with all its seeds, or a Hugging Face model under one encoding.
`configs/study/rows/NAME` has the form of a folder of results, with runs that have no weights, and
`pieces.json` says which runs belong to which piece. A study that takes a day is made piece by piece, on
several machines, and its claims, intervals and pictures are computed from what is stored.
"""

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from pe_bench.commands.reproduce.study import STDLIB, FinishedStep, Study, Sweep
from pe_bench.errors import RunError, UserError, require
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.kept import copy_anchors, copy_run
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import MEANS_FILE
from pe_bench.runs.untrusted import read_json
from pe_bench.system.files import write_json
from pe_bench.values import check_type

# The columns that must be equal in two rows of a study whose `_targets_key` is the same.
COMPARED_COLUMNS = {"data_hash": "text", "target_hash": "targets"}


@dataclass(frozen=True)
class Piece:
    """An encoding of a sweep with its seeds."""

    sweep: str
    encoding: str
    seeds: int
    settings: str  # a hash of the overrides in the study's file, so that a changed file has other pieces
    runs: tuple[str, ...] = ()  # the names of the stored runs, in the order of their seeds

    def __str__(self) -> str:
        name = f"{self.encoding} ({self.sweep})" if self.sweep else self.encoding
        return f"{name}, seeds: {self.seeds}"

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Return the sweep, the encoding, the number of seeds and the settings, which identify a piece."""
        return self.sweep, self.encoding, self.seeds, self.settings


def pieces_of(study: Study, sweep: Sweep) -> list[Piece]:
    """Return the pieces of a sweep, without stored runs, in the order in which they are made."""
    shared = study.shared_overrides(sweep)
    overrides = "\n".join(text for text in shared if not text.startswith("data.path="))
    settings = hashlib.sha256(overrides.encode()).hexdigest()[:16]
    seeds = study.seeds_of(sweep)
    return [Piece(sweep.name, encoding, seeds, settings) for encoding in sweep.run_encodings]


class StoredPieces:
    """The stored pieces of a study, in a folder next to the study's file that has the form of results.

    The pieces of each folder of text files have a folder of their own, named by a hash of the files.
    """

    def __init__(self, study: Study) -> None:
        name = study.name if study.text == STDLIB else f"{study.name}-files-{_hash_of_text(Path(study.text))}"
        self.study = study
        self.folder = study.path.parent / "rows" / name

    @property
    def _index_file(self) -> Path:
        return self.folder / "pieces.json"

    def read(self) -> list[Piece]:
        """Return the stored pieces, if any. Raises `UserError` for a damaged index."""
        if not self._index_file.is_file():
            return []
        try:
            records = check_type(read_json(self._index_file)["pieces"], list[dict], "pieces")
            return [self._piece_of_record(record) for record in records]
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            raise UserError(f"{self._index_file} is damaged ({error}): restore it from git") from error

    @staticmethod
    def _piece_of_record(record: dict[str, Any]) -> Piece:
        """Return the piece of an entry of pieces.json, with its values checked."""
        kinds = {"sweep": str, "encoding": str, "seeds": int, "settings": str, "runs": list[str]}
        checked_values: dict[str, Any] = {}
        for name, kind in kinds.items():
            checked_values[name] = check_type(record[name], kind, name)
        checked_values["runs"] = tuple(checked_values["runs"])
        return Piece(**checked_values)

    @property
    def _pieces(self) -> list[Piece]:
        """Return the pieces of the study, stored or not."""
        by_sweep = (pieces_of(self.study, sweep) for sweep in self.study.sweeps)
        return list(chain.from_iterable(by_sweep))

    def missing(self) -> list[Piece]:
        """Return the pieces of the study that are not stored with all seeds.

        The `runs` of a piece are its stored runs of fewer seeds. They are empty if further training or an
        explanation needs the weights of all runs, which stored runs lack; scorings do not need weights,
        because stored rows have their scores.
        """
        stored = self.read()
        keys = {piece.key for piece in stored}
        missing_pieces: list[Piece] = []
        for sweep in self.study.sweeps:
            for piece in pieces_of(self.study, sweep):
                if piece.key in keys:
                    continue
                # Further training and explanations need weights, which stored runs lack.
                if sweep.parent_sweep or self.study.explains:
                    missing_pieces.append(piece)
                else:
                    missing_pieces.append(replace(piece, runs=_runs_of_fewer_seeds(piece, stored)))
        return missing_pieces

    def still_in_study(self) -> list[Piece]:
        """Return the stored pieces that the study's file still has."""
        keys = {piece.key for piece in self._pieces}
        return [piece for piece in self.read() if piece.key in keys]

    def steps(self) -> list[FinishedStep]:
        """Return a step for each stored piece of the study, with all of the piece's rows.

        Raises `UserError` if no piece is stored, or if a part of a piece is missing or damaged.
        """
        pieces = self.still_in_study()
        study = self.study.name
        command = f"pe-bench reproduce {study} --write-table"
        if any(sweep.hf_model for sweep in self.study.sweeps):
            command += " --models MODELS"
        command += "".join(f" --config-dir {shlex.quote(str(folder))}" for folder in self.study.search)
        if self.study.text != STDLIB:
            command += f" --text {shlex.quote(self.study.text)}"
        require(bool(pieces), f"no piece of {study} is stored: `{command}` makes and stores them")
        for piece in pieces:
            for run in piece.runs:
                folder = RunFolder(self.folder / "runs" / run)
                has_means = (folder.path / MEANS_FILE).is_file()
                has_scores = has_means or (folder.path / "scores").is_dir()
                message = f"{folder.path} of {piece} is missing or damaged: restore it from git"
                require(bool(folder.rows) and has_scores, message)
        steps = []
        for piece in pieces:
            keys = {row.key for row in self._rows([piece])}
            steps.append(FinishedStep(piece.sweep, piece.runs, keys))
        return steps

    def _rows(self, pieces: Iterable[Piece]) -> list[Row]:
        """Return the stored rows of pieces."""
        rows: list[Row] = []
        for run in chain.from_iterable(piece.runs for piece in pieces):
            rows += RunFolder(self.folder / "runs" / run).rows
        return rows

    def label_of(self, piece: Piece) -> str:
        """Return a stored piece's label in tables; the study's file may write its options differently."""
        return self._rows([piece])[0].encoding

    def add(self, piece: Piece, steps: Sequence[FinishedStep], results_dir: Path) -> None:
        """Store a piece: copy its runs that are not stored yet from a folder of results.

        steps: the sweep of the piece and the scorings of its runs. Raises `UserError`, before anything is
        written, for rows of another text, other targets or another version of PyTorch than the stored rows,
        and `RunError` without rows.
        """
        runs = chain.from_iterable(step.runs for step in steps)
        names = tuple(dict.fromkeys(runs))
        keys = set().union(*(step.keys for step in steps))
        rows_of = {}
        for name in names:
            rows = RunFolder(results_dir / "runs" / name).rows
            rows_of[name] = [row for row in rows if row.key in keys]
        self._require_comparable(piece, list(chain.from_iterable(rows_of.values())))

        kept_runs = self.folder / "runs"
        for name, rows in rows_of.items():
            copy_run(results_dir / "runs" / name, rows, kept_runs / name)
            copy_anchors(results_dir / "anchors", rows, self.folder / "anchors")
        pieces = [stored for stored in self.read() if stored.key != piece.key]
        pieces.append(replace(piece, runs=(*piece.runs, *names)))
        write_json(self._index_file, {"pieces": list(map(asdict, pieces))})

    def require_torch(self) -> None:
        """Raise `UserError` if another version of PyTorch made the stored pieces."""
        stored = self._rows(self.read())
        if stored:
            here = major_minor(torch.__version__)
            there = major_minor(stored[0].torch)
            message = f"stored pieces were made with PyTorch {there}, and {here} is here"
            way_out = f"install PyTorch {there}, or delete {self.folder} to make all pieces anew"
            require(here == there, f"{message}: {way_out}")

    def _require_comparable(self, piece: Piece, rows: Sequence[Row]) -> None:
        """Raise `UserError` for rows that are not comparable with the stored rows of other pieces.

        Raises `RunError` if there are no rows.
        """
        if not rows:
            raise RunError(f"{piece} has no rows")
        others = [other for other in self.read() if other.key != piece.key]
        stored = self._rows(others)
        if stored:
            here = major_minor(rows[0].torch)
            there = major_minor(stored[0].torch)
            message = f"{piece} was made with PyTorch {here}, the stored rows with {there}"
            require(here == there, f"{message}: store the pieces of a study with one version of PyTorch")
        row_at = {_targets_key(row): row for row in stored}
        for row in rows:
            other = row_at.get(_targets_key(row), row)
            for column, quantity in COMPARED_COLUMNS.items():
                here = getattr(row, column)
                there = getattr(other, column)
                message = f"{piece} has {quantity} {here} at {row.length}, but the stored rows have {there}"
                require(here == there, message)


def _hash_of_text(folder: Path) -> str:
    """Return a short hash of the names and contents of the files in a folder, without hidden files."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for name in names:
        if any(part.startswith(".") for part in name.split("/")):
            continue
        with (folder / name).open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} {name}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:8]


def _targets_key(row: Row) -> tuple[object, ...]:
    """Return the text, tokenizer, protocol and length of a row, which decide its targets."""
    return row.data, row.tokenizer, row.protocol, row.length


def _runs_of_fewer_seeds(piece: Piece, stored: Sequence[Piece]) -> tuple[str, ...]:
    """Return the runs of the stored piece that differs only in having fewer seeds; empty without one."""
    begun = []
    for other in stored:
        is_alike = replace(other, seeds=piece.seeds).key == piece.key
        # One run for each seed, in their order: a study whose overrides sweep a key has several.
        if is_alike and len(other.runs) == other.seeds < piece.seeds:
            begun.append(other.runs)
    return max(begun, key=len, default=())


def major_minor(version: str) -> str:
    """Return the major and minor number of a version: `2.13` of `2.13.0+cpu`."""
    release, _, _ = version.partition("+")
    return ".".join(release.split(".")[:2])

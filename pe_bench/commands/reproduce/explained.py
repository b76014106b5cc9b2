"""Explanations of a study's runs by `explain`, stored with the rows of their pieces."""

import csv
import io
from dataclasses import replace
from pathlib import Path

from pe_bench.commands.explain.explain import explain_runs
from pe_bench.commands.explain.explanation import Explanation, csv_text
from pe_bench.commands.reproduce.claims import RestoredShares, Series
from pe_bench.commands.reproduce.pieces import Piece, StoredPieces
from pe_bench.commands.reproduce.runs import StudyRuns
from pe_bench.commands.reproduce.study import FinishedStep
from pe_bench.report.records import Number
from pe_bench.report.statistics import Interval
from pe_bench.system.files import write_text

EXPLAINED_FOLDER = "explained"  # beside the stored runs of a study


def is_explained(piece: Piece, folder: Path) -> bool:
    """Return whether the piece's explanation is stored. folder: the folder of the stored pieces."""
    return all(path.is_file() for path in _stored_files(piece, folder))


def explain_piece(runs: StudyRuns, piece: Piece, folder: Path) -> None:
    """Explain the runs of a piece, and store the numbers (CSV) and the tables (text).

    folder: the folder of the stored pieces. Runs without weights are trained again. Raises `UserError`,
    `RunError`.
    """
    trained = runs.make_piece(replace(piece, runs=()))[0]
    found = explain_step(runs, trained)
    numbers, tables = _stored_files(piece, folder)
    numbers.parent.mkdir(parents=True, exist_ok=True)
    write_text(numbers, csv_text(found))
    write_text(tables, str(found))


def explain_step(runs: StudyRuns, trained: FinishedStep) -> Explanation:
    """Explain the runs of a step, which have one encoding, with measurements of each layer."""
    sweep = runs.study.sweep(trained.sweep)
    folder = runs.results_dir / "runs"
    paths = [str(folder / name) for name in trained.runs]
    return explain_runs(paths, ["layer"], runs.evaluation_of(sweep))


def stored_shares(pieces: StoredPieces) -> list[RestoredShares]:
    """Return the restored shares in the stored explanations, for each piece that has one."""
    found = []
    for piece in pieces.still_in_study():
        if is_explained(piece, pieces.folder):
            numbers, _ = _stored_files(piece, pieces.folder)
            series = Series(piece.encoding, piece.sweep)
            found.append(shares_in(numbers.read_text(encoding="utf-8"), series, piece.seeds))
    return found


def shares_of(explanation: Explanation, sweep: str) -> RestoredShares:
    """Return the restored shares in an explanation of the runs of a sweep."""
    return shares_in(csv_text(explanation), Series(explanation.label, sweep), len(explanation.runs))


def shares_in(text: str, series: Series, seeds: int) -> RestoredShares:
    """Return the shares that changes of all layers restore. text: the CSV text of an explanation."""
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["change"] and not row["head"]]
    layers = max(len(row["layers"].split()) for row in rows)
    lengths = {int(row["length"]) for row in rows if row["change"] == "lost"}
    shares = {}
    for row in rows:
        if row["change"] == "lost" or len(row["layers"].split()) < layers:
            continue
        share = Number(missing=row["reason"])
        if row["share"]:
            mean, low, high = (float(row[name]) for name in ("share", "share_low", "share_high"))
            share = Number(mean, Interval(mean, low, high, seeds, documents=0))
        if row["share"] or row["reason"]:
            shares[row["change"], int(row["length"])] = share
    return RestoredShares(series, shares, lengths - {length for _, length in shares})


def stored_explanations(pieces: StoredPieces) -> list[str]:
    """Return the tables of the stored explanations, one text for each piece that the study still has."""
    texts = []
    for piece in pieces.still_in_study():
        if is_explained(piece, pieces.folder):
            _, tables = _stored_files(piece, pieces.folder)
            texts.append(tables.read_text(encoding="utf-8"))
    return texts


def _stored_files(piece: Piece, folder: Path) -> tuple[Path, Path]:
    """Return the files of a piece's numbers and tables."""
    words = " ".join(filter(None, [piece.encoding, piece.sweep]))
    label = words.replace(" ", "-").replace("/", "-")
    path = folder / EXPLAINED_FOLDER / f"{label}-{piece.seeds}-seeds-{piece.settings}"
    return path.parent / f"{path.name}.csv", path.parent / f"{path.name}.txt"

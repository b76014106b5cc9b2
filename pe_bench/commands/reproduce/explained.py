"""Explanations of a study's runs by `explain`, stored with the rows of their pieces."""

from dataclasses import replace
from pathlib import Path

from pe_bench.commands.explain.explain import explain_runs
from pe_bench.commands.explain.explanation import Explanation, csv_text, read_csv_text
from pe_bench.commands.explain.picture import draw_layers
from pe_bench.commands.reproduce.claims import RestoredShares, Series
from pe_bench.commands.reproduce.pieces import Piece, StoredPieces
from pe_bench.commands.reproduce.runs import StudyRuns
from pe_bench.commands.reproduce.study import FinishedStep
from pe_bench.report.records import Number
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
    numbers = read_csv_text(text, seeds)
    shares = {}
    for effect in numbers.effects:
        key = effect.change, effect.length
        if not effect.place.is_all:
            continue
        if effect.reason:
            shares[key] = Number(missing=effect.reason)
        elif effect.share is not None:
            shares[key] = Number(effect.share.mean, effect.share)
    return RestoredShares(series, shares, numbers.lengths - {length for _, length in shares})


def draw_explanations(pieces: StoredPieces, folder: Path) -> list[Path]:
    """Draw what each stored explanation says of each layer, and return the pictures.

    A model without a sure loss at a longer length has no picture. folder: the folder of the pictures.
    """
    pictures = []
    for piece in pieces.still_in_study():
        if not is_explained(piece, pieces.folder):
            continue
        table, _ = _stored_files(piece, pieces.folder)
        numbers = read_csv_text(table.read_text(encoding="utf-8"), piece.seeds)
        length = max((effect.length for effect in numbers.effects if effect.share), default=None)
        if length is None:
            continue
        effects = [effect for effect in numbers.effects if effect.length == length]
        path = folder / f"{pieces.study.name}-{_file_label(piece)}.png"
        title = f"{piece}: what a change restores of the loss at {length:,} tokens"
        draw_layers(path, title, "", effects, numbers.measures)
        pictures.append(path)
    return pictures


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
    path = folder / EXPLAINED_FOLDER / f"{_file_label(piece)}-{piece.seeds}-seeds-{piece.settings}"
    return path.parent / f"{path.name}.csv", path.parent / f"{path.name}.txt"


def _file_label(piece: Piece) -> str:
    """Return the encoding and the sweep of a piece as a part of a file's name."""
    words = " ".join(filter(None, [piece.encoding, piece.sweep]))
    return words.replace(" ", "-").replace("/", "-")

"""Explanations of a study's runs by `explain`, stored with the rows of their pieces."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pe_bench.commands.explain.effects import Effect, Loss
from pe_bench.commands.explain.explain import explain_runs
from pe_bench.commands.explain.explanation import CsvNumbers, Explanation, csv_text, read_csv_text
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


def shares_of(series: Series, losses: Iterable[Loss], effects: Iterable[Effect]) -> RestoredShares:
    """Return the shares that changes of all layers restore, by the losses and effects of an explanation."""
    shares = {}
    for effect in effects:
        if effect.place.is_all and (effect.reason or effect.share is not None):
            mean = effect.share.mean if effect.share else None
            shares[effect.change, effect.length] = Number(mean, effect.share, effect.reason)
    missing = {}
    for loss in losses:
        if not loss.is_sure:
            missing[loss.length] = loss.reason or f"no loss is sure at {loss.length:,}"
    return RestoredShares(series, shares, missing)


def stored_shares(pieces: StoredPieces) -> list[RestoredShares]:
    """Return the restored shares in the stored explanations, for each piece that has one."""
    found = []
    for piece in _explained_pieces(pieces):
        numbers = _read_numbers(piece, pieces.folder)
        series = Series(pieces.label_of(piece), piece.sweep)
        found.append(shares_of(series, numbers.losses, numbers.effects))
    return found


def draw_explanations(pieces: StoredPieces, folder: Path) -> list[Path]:
    """Draw the numbers of each stored explanation by layer, and return the paths of the pictures.

    A model without a sure loss at a longer length has no picture. folder: the folder of the pictures.
    """
    pictures = []
    for piece in _explained_pieces(pieces):
        numbers = _read_numbers(piece, pieces.folder)
        length = max((loss.length for loss in numbers.losses if loss.is_sure), default=None)
        if length is None:
            continue
        effects = [effect for effect in numbers.effects if effect.length == length]
        path = folder / f"{pieces.study.name}-{_file_label(piece)}.png"
        labelled = replace(piece, encoding=pieces.label_of(piece))
        title = f"{labelled}: what a change restores of the loss at {length:,} tokens"
        draw_layers(path, title, [], effects, numbers.measures)
        pictures.append(path)
    return pictures


def stored_explanations(pieces: StoredPieces) -> list[str]:
    """Return the tables of the stored explanations, one text for each piece that the study still has."""
    texts = []
    for piece in _explained_pieces(pieces):
        _, tables = _stored_files(piece, pieces.folder)
        texts.append(tables.read_text(encoding="utf-8"))
    return texts


def _explained_pieces(pieces: StoredPieces) -> list[Piece]:
    """Return the pieces of the study whose explanation is stored."""
    return [piece for piece in pieces.still_in_study() if is_explained(piece, pieces.folder)]


def _read_numbers(piece: Piece, folder: Path) -> CsvNumbers:
    """Return the numbers of a stored explanation. folder: the folder of the stored pieces."""
    numbers, _ = _stored_files(piece, folder)
    return read_csv_text(numbers.read_text(encoding="utf-8"), piece.seeds)


def _stored_files(piece: Piece, folder: Path) -> tuple[Path, Path]:
    """Return the files of a piece's numbers and tables."""
    path = folder / EXPLAINED_FOLDER / f"{_file_label(piece)}-{piece.seeds}-seeds-{piece.settings}"
    return path.parent / f"{path.name}.csv", path.parent / f"{path.name}.txt"


def _file_label(piece: Piece) -> str:
    """Return the encoding and the sweep of a piece as a part of a file's name."""
    words = " ".join(filter(None, [piece.encoding, piece.sweep]))
    return words.replace(" ", "-").replace("/", "-")

"""Explanations of a study's runs by `explain`, stored with the rows of their pieces."""

from dataclasses import replace
from pathlib import Path

from pe_bench.commands.explain.explain import explain_runs
from pe_bench.commands.explain.explanation import Explanation, csv_text
from pe_bench.commands.reproduce.pieces import Piece, StoredPieces
from pe_bench.commands.reproduce.runs import StudyRuns
from pe_bench.commands.reproduce.study import Step
from pe_bench.system.files import write_text

FOLDER = "explained"  # beside the stored runs of a study


def is_explained(piece: Piece, folder: Path) -> bool:
    """Return whether the piece's explanation is stored. folder: the folder of the stored pieces."""
    return all(path.is_file() for path in _stored_files(piece, folder))


def explain_piece(runs: StudyRuns, piece: Piece, folder: Path) -> None:
    """Explain the runs of a piece, and store the numbers (CSV) and the tables (text).

    folder: the folder of the stored pieces. Runs without weights are trained again. Raises `UserError`,
    `RunError`.
    """
    trained = runs.make(replace(piece, runs=()))[0]
    found = explain(runs, trained)
    numbers, tables = _stored_files(piece, folder)
    numbers.parent.mkdir(parents=True, exist_ok=True)
    write_text(numbers, csv_text(found))
    write_text(tables, str(found))


def explain(runs: StudyRuns, trained: Step) -> Explanation:
    """Explain the runs of a step, which have one encoding, with measurements of each layer."""
    sweep = runs.study.sweep(trained.sweep)
    folder = runs.results_dir / "runs"
    paths = [str(folder / name) for name in trained.runs]
    return explain_runs(paths, ["layer"], runs.evaluation_of(sweep))


def stored_explanations(pieces: StoredPieces) -> list[str]:
    """Return the stored tables, one text for each piece that the study still has."""
    texts = []
    for piece in pieces.of_study():
        if is_explained(piece, pieces.folder):
            _, tables = _stored_files(piece, pieces.folder)
            texts.append(tables.read_text(encoding="utf-8"))
    return texts


def _stored_files(piece: Piece, folder: Path) -> tuple[Path, Path]:
    """Return the files of a piece's numbers and tables."""
    words = " ".join(filter(None, [piece.encoding, piece.sweep]))
    label = words.replace(" ", "-").replace("/", "-")
    path = folder / FOLDER / f"{label}-{piece.seeds}-seeds-{piece.settings}"
    return path.parent / f"{path.name}.csv", path.parent / f"{path.name}.txt"

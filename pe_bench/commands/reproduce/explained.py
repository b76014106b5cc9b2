"""Why the runs of a study fail at longer texts: what `explain` finds of each piece, stored with its rows."""

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
    """Return whether the piece's explanation is stored. folder: of the stored pieces."""
    return all(path.is_file() for path in _files(piece, folder))


def explain_piece(runs: StudyRuns, piece: Piece, folder: Path) -> None:
    """Explain the runs of a piece, and store the numbers (CSV) and the tables (text).

    folder: of the stored pieces. Runs whose weights are gone are trained again. Raises `UserError`,
    `RunError`.
    """
    trained = runs.make(replace(piece, runs=()))[0]
    found = explain(runs, trained)
    numbers, tables = _files(piece, folder)
    numbers.parent.mkdir(parents=True, exist_ok=True)
    write_text(numbers, csv_text(found))
    write_text(tables, str(found))


def explain(runs: StudyRuns, trained: Step) -> Explanation:
    """Explain the runs of a step, which are of one encoding, with what is measured in each layer."""
    sweep = next(each for each in runs.study.sweeps if each.name == trained.sweep)
    paths = [str(runs.results_dir / "runs" / name) for name in trained.runs]
    return explain_runs(paths, ["layer"], runs.evaluation_of(sweep))


def stored_explanations(pieces: StoredPieces) -> list[str]:
    """Return the stored tables, one text for each piece that the study still has."""
    explained = [piece for piece in pieces.of_study() if is_explained(piece, pieces.folder)]
    return [_files(piece, pieces.folder)[1].read_text(encoding="utf-8") for piece in explained]


def _files(piece: Piece, folder: Path) -> tuple[Path, Path]:
    """Return the files of a piece's numbers and tables."""
    words = " ".join(filter(None, [piece.encoding, piece.sweep])).replace(" ", "-").replace("/", "-")
    name = f"{words}-{piece.seeds}-seeds-{piece.settings}"
    return folder / FOLDER / f"{name}.csv", folder / FOLDER / f"{name}.txt"

"""Finished runs, found by name, path, pattern, encoding or conditions, with their scores and anchors."""

import fnmatch
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from pe_bench.config.overrides import quote
from pe_bench.config.schema import HF_SECTION
from pe_bench.errors import RunError, UserError, require
from pe_bench.runs.folder import RunFolder, encoding_in, folder_finder, folders_of_runs, read_all, read_result
from pe_bench.runs.rows import BY_RUN, COLUMNS, TASK, Row, grouped, level_of, one_per_run, read_rows
from pe_bench.runs.scores import Means, compute_means, load_scores, score_file
from pe_bench.runs.typed import suggested_eval_command, tags_of
from pe_bench.runs.untrusted import check_files, read_json
from pe_bench.values import unknown

HF_PREFIX = "hf:"  # begins the name of a Hugging Face model
CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|<=|>=|==?|<|>)\s*(.*?)\s*")
ORDER_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# Columns that follow from others, that have an option for choosing, or that are results: to choose seeds by
# their results would make any encoding the best.
NOT_SELECTABLE_COLUMNS = (
    *("control", "protocol", "setting", "status", "reason", "nll", "perplexity", "bits_per_byte"),
    *("context_mean", "targets", "documents", "target_hash", "peak_memory_mb", "stride", "stride_rule"),
    *("target_tokens", "forced", "knows_length", "slice", "judge", "slice_hash"),
    *("accuracy", "exact", "chance", "depth"),
)
# Conditions on these columns choose the rows to show; a row that is not shown may still be a baseline.
SHOWN_ROW_COLUMNS = ("length", "scored_with")
KEY_SYNONYMS = {"task": "data"}  # keys of a training, and the columns with their values
# Options that a run takes on the command line, by the keys that set them in a training.
OPTIONS_BY_KEY = {
    "threads": "--threads",
    "device": "--device",
    "lengths": "--lengths",
    "targets": "--targets",
    "controls": "--controls",
    "protocol": "--protocol",
    "max_length": "--max-length",
    "stride": "--stride",
    "precision": "--precision",
    "half": "--half",
    "cache_dir": "--cache-dir",
    "results_dir": "--results-dir",
    "data.path": "--data-path",
}
LABEL_COLUMNS = ("encoding", "scored_with")  # columns with the labels of encodings, with their options


def is_hf_name(name: object) -> bool:
    """Return true for the name of a Hugging Face model, which starts with `hf:`; nothing is opened."""
    return isinstance(name, str) and name.startswith(HF_PREFIX)


def address_of(name: str) -> str:
    """Return the folder or file that the hf: name of a model means, or its repository without a revision."""
    path = Path(os.path.expanduser(name.removeprefix(HF_PREFIX)))
    return str(path.resolve()) if path.exists() else name.partition("@")[0]


def scores_hf_model(run: RunFolder, name: str) -> bool:
    """Return whether a run scored the Hugging Face model of a name: hf:FOLDER or hf:OWNER/NAME[@REVISION]."""
    config = run.flat_config
    folder = Path(os.path.expanduser(name.removeprefix(HF_PREFIX)))
    if folder.exists():
        return config.get(f"{HF_SECTION}.source") == f"{HF_PREFIX}{folder.resolve()}"
    address, _, revision = name.partition("@")
    is_revision = revision in ("", config.get(f"{HF_SECTION}.revision"))
    return is_revision and config.get(f"{HF_SECTION}.source") == address


def finished_runs(results_dir: Path) -> list[Path]:
    """Return the folders of the runs with a `result.json`, in the order in which they finished."""
    finish_times: dict[Path, int] = {}
    for run in folders_of_runs(results_dir):
        with suppress(OSError):  # not finished, or not readable, which the reader of its rows reports
            finish_times[run] = (run / "result.json").lstat().st_mtime_ns
    return sorted(finish_times, key=finish_times.__getitem__)


def tagged_runs(results_dir: Path, tag: str) -> list[Path]:
    """Return the finished runs with a tag, in the order of finishing. Raise `UserError` if no run has it."""
    tags_of_runs = {run: tags_of(run) for run in finished_runs(results_dir)}
    tagged = [run for run, tags in tags_of_runs.items() if tag in tags]
    if tagged:
        return tagged
    known = set().union(*tags_of_runs.values())
    message = f"no run in {results_dir} has a tag"
    if known:
        message = unknown(tag, "tag", sorted(known))
    raise UserError(f"{message}; pe-bench train ... tag={tag} gives one")


def runs_of_sweep(run: Path, results_dir: Path) -> list[Path]:
    """Return the finished runs of the newest sweep that made or scored a run; only the run if none did."""
    finished = {each.name: each for each in finished_runs(results_dir)}
    for sweep in sorted((results_dir / "sweeps").glob("*"), reverse=True):
        names_of_sweep: list[str] = []
        for path in sorted((sweep / "jobs").glob("[0-9]*.json")):
            with suppress(RunError, OSError, ValueError, TypeError, AttributeError):
                names_of_sweep.append(Path(read_json(path)["run"]).name)
        if run.name in names_of_sweep:
            return [finished[name] for name in dict.fromkeys(names_of_sweep) if name in finished]
    return [run]


def find_run(name: str, results_dir: Path) -> Path:
    """Return the finished run with a name or path. Raise `UserError` if no run or several runs have it."""
    runs = without_tries(find_runs([name], results_dir, anywhere=True))
    names = ", ".join(run.name for run in runs)
    require(len(runs) == 1, f"'{name}' is the name of several runs: give one in full: {names}")
    return runs[0]


def without_tries(runs: list[Path]) -> list[Path]:
    """Leave out runs scored on half of the documents, as `try` scores them, if other runs are left."""
    runs_on_all_documents: list[Path] = []
    for run in runs:
        half = RunFolder(run).flat_config.get("eval.half")
        if half in (None, "both"):
            runs_on_all_documents.append(run)
    return runs_on_all_documents or runs


def find_runs(
    names: Iterable[str], results_dir: Path, where: Sequence["Condition"] = (), *, anywhere: bool = False
) -> list[Path]:
    """Return the finished runs that names select and that meet all conditions, each once.

    A name is an encoding, a run's whole name or its beginning, a pattern, the path of a run, or the name of a
    Hugging Face model. Without names, conditions choose among all runs. With `anywhere`, a run may be outside
    `results_dir`. Raise `UserError` if no run has a name, and if no run is left.
    """
    named = [_runs_named(name, results_dir, anywhere=anywhere) for name in names]
    runs = list(dict.fromkeys(chain.from_iterable(named)))
    if not where:
        return runs
    folder = results_dir / "runs"
    rows = read_all(results_dir).rows
    if runs:
        names_of_runs = {run.name for run in runs}
        rows = [row for row in rows if row.run in names_of_runs]
    require(bool(rows), f"no scored run in {folder}: make one with `pe-bench train encoding=rope`")
    scored = ScoredRuns(folder_finder(folder), read_anchors(None))
    selected = {row.run for row in scored.select(rows, where)}
    words = " ".join(map(str, where))
    require(bool(selected), f"no run meets {words}: `pe-bench list runs` shows what there is")
    return [run for run in finished_runs(results_dir) if run.name in selected]


def runs_to_score(
    names: Sequence[str], where: Sequence["Condition"], results_dir: Path, *, everything: bool
) -> list[Path]:
    """Return the finished runs that names and conditions select; without either the newest, or everything.

    Raises `UserError` if there is no run.
    """
    for condition in where:
        message = f"--where {condition.key} chooses scores, and this command chooses runs: leave it out"
        require(condition.key not in SHOWN_ROW_COLUMNS, message)
    if names or where:
        return find_runs(names, results_dir, where, anywhere=not where)
    runs = finished_runs(results_dir)
    message = f"no finished run in {results_dir / 'runs'}: make one with `pe-bench train encoding=rope`"
    require(bool(runs), message)
    return runs if everything else runs[-1:]


def _runs_named(typed: str, results_dir: Path, *, anywhere: bool) -> list[Path]:
    """Return the finished runs of one name, path or Hugging Face model. Raise `UserError` without a run."""
    runs = finished_runs(results_dir)
    folder = results_dir / "runs"
    if is_hf_name(typed):
        scored = [run for run in runs if scores_hf_model(RunFolder(run), typed)]
        way_out = f"score it with `pe-bench eval {shlex.quote(typed)}`"
        require(bool(scored), f"no finished run of {typed} in {folder}: {way_out}")
        return scored
    name = typed.rstrip("/")
    selections: tuple[Callable[[Path], bool], ...] = (
        lambda run: run.name == name,
        lambda run: encoding_in(run.name) == name,
        lambda run: fnmatch.fnmatch(run.name, f"{name}*"),
    )
    for is_selected in selections if name else ():
        if selected := [run for run in runs if is_selected(run)]:
            return [*map(_require_finished, selected)] if anywhere else selected
    if typed and os.path.isfile(os.path.join(typed, "config.yaml")):  # whatever was typed is no error here
        run = _require_finished(Path(typed).resolve())
        way_out = f"copy it there with `pe-bench import {shlex.quote(typed)}`, or say --results-dir"
        is_here = run.parent == folder.resolve()
        require(anywhere or is_here, f"the run {typed} is not one of {folder}: {way_out}")
        return [run if anywhere else folder / run.name]
    for is_selected in selections if name else ():
        for run in filter(is_selected, folders_of_runs(results_dir)):
            if (run / "config.yaml").is_file():
                _require_finished(run)
    raise UserError(f"no finished run '{typed}' in {folder}: {_advice_for_unknown_name(typed)}")


def _advice_for_unknown_name(typed: str) -> str:
    """Return the advice for a name that no run has, such as KEY=VALUE."""
    key, is_key, value = typed.partition("=")
    option = OPTIONS_BY_KEY.get(key.removeprefix("eval."))
    if is_key and option is not None:
        return f"write {option} {shlex.quote(value.strip('[]'))}"
    condition = f"say --where {shlex.quote(typed)}"
    if is_key and not key.endswith(("!", "<", ">")):
        return f"KEY=VALUE is for training and for hf:FOLDER; leave {key} out, or {condition}"
    return condition if CONDITION.fullmatch(typed) else "see `pe-bench list runs`"


def _require_finished(run: Path) -> Path:
    """Return `run` itself. Raise `UserError` if it is not finished, `RunError` if it is damaged."""
    way_out = "repeat the command that trained it, and it continues"
    require(read_result(run) is not None, f"{run} is not finished: {way_out}")
    return run


# Conditions


@dataclass(frozen=True)
class Condition:
    """A comparison of a column or key with values, such as `encoding=rope,alibi`."""

    key: str
    sign: str  # the sign of the comparison
    values: tuple[str, ...]  # the values to compare with; with `=`, a run needs one of these

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{','.join(self.values)}"

    def holds(self, value: Any) -> bool:
        """Return whether a run with this value of the key meets the condition."""
        if self.sign in ORDER_SIGNS:
            is_ordered = ORDER_SIGNS[self.sign]
            return is_number(value) and is_ordered(float(value), float(self.values[0]))
        names = names_of_label(str(value)) if self.key in LABEL_COLUMNS else (value,)
        pairs = product(names, self.values)
        is_equal = any(_matches_pattern(name, pattern) for name, pattern in pairs)
        return is_equal is (self.sign == "=")


def parse_condition(word: str) -> Condition:
    """Return a condition such as `seed<3`, `encoding=rope,alibi` or `train.lr>=0.001`. Raise `UserError`."""
    match = CONDITION.fullmatch(word)
    if match is None or not match[3]:
        way_out = "say KEY=VALUE, KEY=VALUE,VALUE, KEY!=VALUE or KEY<NUMBER"
        raise UserError(f"--where '{word}' cannot be read: {way_out}")
    typed_key, typed_sign, text = match.groups()
    key = KEY_SYNONYMS.get(typed_key, typed_key)
    sign = typed_sign.replace("==", "=")
    message = f"--where '{word}': {key}{sign} needs a number, and '{text}' is none"
    require(sign not in ORDER_SIGNS or is_number(text), message)
    check_selectable_key(key, "--where")
    values = [text]
    if sign not in ORDER_SIGNS:
        values = [value.strip() for value in _split_at_commas(text)]
    return Condition(key, sign, tuple(values))


def check_selectable_key(key: str, option: str) -> None:
    """Raise `UserError` unless a key is a column to select by or has a dot, as keys of a configuration do.

    option: the option of the command line that named the key, such as `--where`, for the message.
    """
    keys = [column for column in COLUMNS if column not in NOT_SELECTABLE_COLUMNS]
    if "." not in key and key not in keys:
        raise UserError(f"{unknown(key, option, keys)} (or a key of a run's config.yaml)")


def names_of_label(label: str) -> tuple[str, ...]:
    """Return the names of an encoding: its label, also without options, and without its code's hash.

    `root_bias@1a2b strength=0.25` is `root_bias@1a2b` and `root_bias` too.
    """
    name = label.split(" ")[0]
    if name.endswith(","):  # `rope, then yarn x4`, which is not the encoding `rope`
        return (label,)
    return label, name, re.sub(r"@[0-9a-f]+", "", name)


def _matches_pattern(value: Any, pattern: str) -> bool:
    """Return whether a value equals `pattern` as a number or a text, or matches it, as rope does `rope*`.

    Other values than texts are compared as config.yaml spells them, such as true, null or [16,32].
    """
    if isinstance(value, list):
        return _matches_list(value, pattern)
    if is_number(value) and is_number(pattern) and float(value) == float(pattern):
        return True
    text = value
    if not isinstance(value, str):
        text = quote(value).lower()
        pattern = pattern.replace(" ", "").lower()
    return text == pattern or fnmatch.fnmatchcase(text, pattern)


def _matches_list(values: list[Any], pattern: str) -> bool:
    """Return whether a list has the elements of `pattern`, such as [16,32] or [16,*]."""
    if not (pattern.startswith("[") and pattern.endswith("]")):
        return fnmatch.fnmatchcase(quote(values), pattern)
    patterns = list(filter(None, _split_at_commas(pattern[1:-1])))
    return len(values) == len(patterns) and all(map(_matches_pattern, values, patterns))


def _split_at_commas(text: str) -> list[str]:
    """Return the parts of a text between commas, without spaces around; commas in brackets do not count."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def is_number(value: Any) -> bool:
    """Return whether a value is a number, or a text of one, and not true or false."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):  # of a whole number of hundreds of digits
        return False
    return not isinstance(value, bool)


# Anchors: scores of models that cost no training, kept once for all runs that train on the same windows. An
# anchor has a folder in `anchors`, next to `runs`, with rows and scores in a run's format; it is no run.

FREQUENCIES = "(token frequencies)"
TRIGRAM = "(trigram)"
COPYING = "(trigram+copy)"
# The beginnings of their folders' names.
ANCHOR_NAMES = {FREQUENCIES: "frequencies", TRIGRAM: "trigram", COPYING: "trigram+copying"}
# Of the scored tokens of a Hugging Face model. Read after `frequencies`, whose older scores it replaces.
OWN_FREQUENCIES = "own-frequencies"


@dataclass(frozen=True)
class StoredAnchors:
    """The rows and folders of the anchors in a folder of results."""

    # Keys: the anchor's name and its `anchor_key`.
    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    folders: dict[str, RunFolder] = field(default_factory=dict)  # keys: the name of the folder


def anchor_key(row: Row, trained: Row | None = None) -> tuple[object, ...]:
    """Return the values that a run's row shares with its anchors' rows: training tokens and scored targets.

    trained: a row of another run, if the anchors were counted on that run's training tokens.
    """
    run = trained or row
    training = (run.data_hash, run.train_length, run.steps, run.train_tokens, run.seed)
    targets = (row.protocol, row.stride_rule, row.length, row.target_hash)
    return (*training, *targets)


def anchors_folder(run: Path) -> Path | None:
    """Return the folder of a run's anchors; None for a run that does not lie in a folder named runs."""
    parent = run.absolute().parent
    return parent.parent / "anchors" if parent.name == "runs" else None


def read_anchors(folder: Path | None) -> StoredAnchors:
    """Return the anchors in a folder, without damaged anchors, which `eval` makes again."""
    anchors = StoredAnchors()
    names = (*ANCHOR_NAMES.values(), OWN_FREQUENCIES)
    beginnings = tuple(f"{name}-s" for name in names)
    for path in sorted(folder.glob("*/eval.csv")) if folder is not None else []:
        anchor = path.parent
        # A folder with a run's name would be taken for the run's folder.
        if anchor.name.startswith(beginnings):
            with suppress(RunError):
                check_files(anchor)
                rows = [row for row in read_rows(path) if row.encoding in ANCHOR_NAMES]
                anchors.folders[anchor.name] = RunFolder(anchor)
                for row in rows:
                    key = (row.encoding, *anchor_key(row))
                    anchors.rows[key] = replace(row, run=anchor.name)
    return anchors


class ScoredRuns:
    """Runs with their configurations and scores, and their anchors.

    The levels of a row's clusters (documents or parts of them) are kept once they are read or computed.
    """

    def __init__(self, folder_of: Callable[[str], RunFolder], anchors: StoredAnchors) -> None:
        """folder_of: returns the folder of a run, by its name."""
        self.folder_of: Callable[[str], RunFolder]
        self.folder_of = lambda name: anchors.folders.get(name) or folder_of(name)
        self.anchors = anchors
        # By run: the message on its first row with another level than its score file.
        self.contradictions: dict[str, str] = {}
        self._means: dict[Row, Means] = {}

    @classmethod
    def read(cls, results_dir: Path) -> "ScoredRuns":
        """Return the runs and the anchors in a folder of results; files of runs are read when needed."""
        return cls(folder_finder(results_dir / "runs"), read_anchors(results_dir / "anchors"))

    def value(self, row: Row, key: str) -> Any:
        """Return the value of a column, or of a key of the configuration; None for a run without the key."""
        if key in COLUMNS:
            return getattr(row, key)
        return self.folder_of(row.run).flat_config.get(key)

    def select(self, rows: Sequence[Row], where: Sequence[Condition]) -> list[Row]:
        """Return the rows that meet all conditions but those on `SHOWN_ROW_COLUMNS`.

        Raises `UserError` for a key that no run has.
        """
        chosen = [condition for condition in where if condition.key not in SHOWN_ROW_COLUMNS]
        for condition in chosen:
            self.require(rows, condition.key, "--where")

        def is_chosen(row: Row) -> bool:
            return all(condition.holds(self.value(row, condition.key)) for condition in chosen)

        return list(filter(is_chosen, rows))

    def require(self, rows: Sequence[Row], key: str, option: str) -> None:
        """Raise `UserError` for a key that is no column and that no run's configuration has.

        option: the option that named the key, for the message.
        """
        runs = one_per_run(rows)
        configs = [self.folder_of(row.run).flat_config for row in runs]
        if key in COLUMNS or any(key in config for config in configs):
            return
        raise UserError(unknown(key, option, set().union(*configs)))

    def means(self, row: Row) -> Means:
        """Return the means that the run keeps, or compute them from its scores. Raises `RunError`."""
        if row in self._means:
            return self._means[row]
        if row.protocol == TASK:
            right = self.answers(row)
            is_exact = (right == 1).astype(float)
            means = Means(np.arange(len(right)), is_exact, level_of(row), 1)
        else:
            folder = self.folder_of(row.run)
            means = folder.means.of(row)
            if means is None:
                path = score_file(folder.path, row)
                means = compute_means(load_scores(path), row.protocol)
                if not np.isclose(means.level, level_of(row), rtol=1e-6, atol=0, equal_nan=True):
                    unit = "nats per token" if row.loses_text else "bits per byte"
                    raise self._contradiction(row, path, f"{means.level:.6f} {unit}")
        self._means[row] = means
        return means

    def answers(self, row: Row) -> np.ndarray:
        """Return the share of right answers of each example, float64 [examples]. Raises `RunError`."""
        path = score_file(self.folder_of(row.run).path, row)
        scores = load_scores(path)
        right = scores.accuracy(scores.clusters.group)
        exact = (right == 1).mean()
        if not np.isclose(exact, level_of(row), rtol=1e-6, atol=0):
            raise self._contradiction(row, path, f"a share of {exact:.6f} right examples")
        return right

    def _contradiction(self, row: Row, path: Path, level: str) -> RunError:
        """Keep and return the error of a row with another level than its score file, which has `level`."""
        folder = self.folder_of(row.run).path
        message = f"{path} gives {level}, and eval.csv of the run has {level_of(row):.6f}"
        text = f"{message}: delete eval.csv and score the run again with {suggested_eval_command(folder)}"
        self.contradictions.setdefault(row.run, text)
        return RunError(text)

    def slice_rows(self, rows: Iterable[Row], name: str) -> list[Row]:
        """Return the rows of a slice for rows of all targets, run by run; none for runs without the slice."""
        rows_of_slice: list[Row] = []
        for run, rows_of_run in grouped(rows, BY_RUN).items():
            rows_of_slice += self.folder_of(run).means.rows_of_slice(rows_of_run, name)
        return rows_of_slice

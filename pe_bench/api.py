"""The Python interface for notebooks, which the commands call too: `train`, `evaluate`, `extend` and others.

The options of a command are the arguments of its function. Docstrings explain arguments: a line
`argument METAVAR: meaning` is in `--help` too. A function imports its work in its body, so help stays fast.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from pe_bench.commands.evaluate import Evaluation, Run
    from pe_bench.commands.explain.explanation import Explanation
    from pe_bench.commands.extend import Extended
    from pe_bench.commands.try_change.trying import Outcome
    from pe_bench.runs.importing import Imported


def train(*overrides: str, config_dir: str | Path | Sequence[str | Path] | None = None, **keys: Any) -> "Run":
    """Train a model, score it at longer lengths, and return the run. Finished work is reused.

        pe_bench.train(encoding="rope", seed=1, train={"length": 64})
        pe_bench.train("encoding=rope", "seed=1", "train.length=64")

    overrides: KEY=VALUE as on the command line. keys: the same as named arguments, applied after the
    overrides; a dictionary sets keys of a group, such as train, eval or encoding. config_dir: a folder with
    your own encoding/NAME.yaml. Progress is written to standard error.

    An interrupt (Ctrl-C, the stop button of a notebook) ends the training after its step: what is done is
    saved, and the same call continues from there.

    Raises `UserError` (a `ValueError`) before anything is written if a key or a value cannot work, and
    `RunError` if the run fails later. If the code of a custom encoding fails at some lengths, nothing is
    raised: they have the status failed in `scores`, and `failure` names them.
    """
    from pe_bench.config.compose import compose_config
    from pe_bench.config.overrides import overrides_of, parse_override
    from pe_bench.config.parse import warn_unused
    from pe_bench.errors import require
    from pe_bench.runs.typed import called_with
    from pe_bench.system.signals import interruptible
    from pe_bench.values import check_texts, listed

    check_texts("an override", *overrides)
    texts = [*overrides]
    search = [*map(Path, listed(config_dir))]
    for key, value in keys.items():
        texts += overrides_of(key, value, search)
    given = [parse_override(text).key for text in texts]
    for key in given:
        message = f"{key} is for the jobs of a sweep, which pe-bench train -m starts: leave it out here"
        require(not key.startswith(("hydra.", "hydra/")), message)
    with interruptible(), called_with(texts):
        config = compose_config(texts, search)
        warn_unused([config], given)
        from pe_bench.commands.evaluate import Run
        from pe_bench.commands.train import train

        lengths = config.eval.lengths if "eval.lengths" in given else None
        return Run(*train(config), config.report.margin, lengths or ()).findable()


def evaluate(
    run: "Run | str | Path",
    lengths: int | str | Sequence[int] | None = None,
    with_: str | Sequence[str] | None = None,
    *,
    protocol: str | None = None,
    max_length: int | None = None,
    targets: int | None = None,
    stride: int | None = None,
    controls: str | None = None,
    per_position: bool | None = None,
    precision: str | None = None,
    half: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    force: bool = False,
    plain: bool = False,
    reference: int | None = None,
    key_tokens_of: "Run | str | Path | None" = None,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
) -> "Run":
    """Score a finished run at other lengths, or its weights under other encodings, and return the run.

        pe_bench.evaluate(run, lengths=[512, 2048], with_=["yarn", "rope_ntk factor=4"])
        pe_bench.evaluate("hf:FOLDER", [4096], overrides=["data=files", "data.path=texts"])

    The run is what `train` returned; or a path; or a name, its beginning or an encoding, if only one run of
    `results_dir` matches; or hf:FOLDER or hf:OWNER/NAME[@REVISION], a Hugging Face model, for which
    `overrides` are KEY=VALUE of data, eval and train.length. None keeps the run's value. Scores are reused.

    lengths N,N: Context lengths in tokens.
    with_ NAME,NAME: Score the weights under other encodings too; 'NAME KEY=VALUE' sets options; repeatable.
    protocol NAME: paired, nonoverlapping or sliding.
    max_length NUMBER: Score the same targets at every length up to this.  [default: 16 x training length]
    targets NUMBER: Target blocks at each length (paired).
    stride NUMBER: Tokens between windows (sliding).
    controls NAME: auto (at 2 and 16 x training length; of a Hugging Face model at the longest too),
        offset (auto, and moved positions), all or none; for paired.
    per_position: Also score by position, at the longest length.
    precision NAME: float32, or bfloat16, which is coarser and has its own table.
    half NAME: both, or the first or second half of the documents, which has its own table.
    device NAME: auto, cpu or cuda.
    threads NUMBER: Processor cores.
    force: Score under incompatible encodings, or changed code, and label the rows.
    plain: Score a Hugging Face model with its own attention, without --with.
    reference NUMBER: Measure the changes of a Hugging Face model from this length.
        [default: its training length]
    key_tokens_of RUN: Choose key targets by another run's scores (report --slice key).
    config_dir DIR: A folder with your encoding/NAME.yaml.
    code FILE: Trust FILE as the code of a run's custom encoding.
    data_path DIR: The data's new location, if it moved.
    cache_dir DIR: Where tokenized data is kept.
    results_dir DIR: The folder of runs and results.csv.

    Raises `UserError` (a `ValueError`) before anything is scored if there is no such run or an option cannot
    work, and `RunError` if scoring fails.
    """
    arguments = _without_arguments(locals(), "run")
    from pe_bench.commands.evaluate import Evaluation

    return _score(run, Evaluation.read(**arguments))


def probe(
    run: "Run | str | Path",
    lengths: int | str | Sequence[int] | None = None,
    with_: str | Sequence[str] | None = None,
    *,
    depths: int | None = None,
    windows: int | None = None,
    task: str | None = None,
    precision: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    force: bool = False,
    plain: bool = False,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
) -> "Run":
    """Ask a finished run to find a span of its validation text, and return the run.

        print(pe_bench.probe(run, lengths=[512, 2048], with_="yarn"))

    Arguments that are not listed below mean the same as for `evaluate`. `print` shows the command's table,
    and `scores` has a row for each length, depth and control. Finished scores are reused.

    lengths N,N: Window lengths in tokens, from 128.  [default: 1, 2, 4 and 16 x training length]
    depths NUMBER: Number of evenly spaced positions of the span, from start to end.  [default: 5]
    windows NUMBER: Windows at each length and depth.  [default: 64; of a Hugging Face model 8, of text]
    task NAME,NAME: Give a Hugging Face model prompts of RULER instead: niah_multikey_3, vt or fwe.

    Raises `UserError` (a `ValueError`) before anything is scored if there is no such run or an option cannot
    work, and `RunError` if scoring fails.
    """
    arguments = _without_arguments(locals(), "run")
    from pe_bench.commands.evaluate import Probing

    return _score(run, Probing.read(**arguments))


def _score(run: "Run | str | Path", request: "Evaluation") -> "Run":
    from pe_bench.commands.evaluate import score
    from pe_bench.system.signals import interruptible
    from pe_bench.values import check_texts

    check_texts("a run", getattr(run, "path", run))
    with interruptible():
        return score(run, request).findable()


def explain(
    runs: "Run | str | Path | Sequence[Run | str | Path]",
    lengths: int | str | Sequence[int] | None = None,
    by: str | Sequence[str] | None = None,
    *,
    targets: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
) -> "Explanation":
    """Find out why finished runs fail at longer texts: change one thing in a layer, and score again.

        print(pe_bench.explain(run))
        pe_bench.explain("rope", by="head").sentence

    The runs are seeds of one encoding, named as for `evaluate`, or hf:FOLDER with `overrides`,
    KEY=VALUE of data and eval. `print` shows the command's tables; `losses`, `effects` and, by layer,
    `measures` are their numbers. Nothing is written to a run.

    lengths N,N: Context lengths in tokens.  [default: 2, 4 and 16 x training length]
    by NAME,NAME: head: also change the heads of the layer that matters most; layer: also
        measure what each layer reads.
    targets NUMBER: Target blocks at each length.  [default: 20; 4 of hf:FOLDER]
    device NAME: auto, cpu or cuda.
    threads NUMBER: Processor cores.
    code FILE: Trust FILE as the code of a run's custom encoding.
    data_path DIR: The data's new location, if it moved.
    cache_dir DIR: Where tokenized data is kept.
    results_dir DIR: The folder of runs and results.csv.

    Raises `UserError` (a `ValueError`) before anything is scored if there is no such run or an option cannot
    work, and `RunError` if scoring fails.
    """
    arguments = _without_arguments(locals(), "runs", "by")
    from pe_bench.commands.evaluate import Evaluation
    from pe_bench.commands.explain.explain import explain_runs
    from pe_bench.system.signals import interruptible
    from pe_bench.values import listed

    names = _names_of_runs("a run", runs)
    parts: list[str] = []
    for text in listed(by):
        parts += str(text).split(",")
    request = Evaluation.read(with_=None, config_dir=None, **arguments)
    with interruptible():
        return explain_runs(names, parts, request)


def extend(
    runs: "Run | str | Path | Sequence[Run | str | Path]",
    to: str | int = "4x",
    with_: str | Sequence[str] | None = None,
    *,
    tokens: int | str | None = None,
    text: str | Path | None = None,
    train_layers: int | None = None,
    long: bool = False,
    lengths: int | str | Sequence[int] | None = None,
    targets: int | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
) -> "Extended":
    """Stretch finished runs to longer texts, and return them with the table that compares them.

        print(pe_bench.extend("rope", "4x", ["yarn", "nope"], tokens=128_000))

    The runs are seeds of one encoding, by name, its beginning or encoding; or hf:FOLDER, which is trained on
    `text`. It scores them unchanged and, without more training, with each encoding; with `tokens` it also
    trains them further with each encoding, and with `long` it trains the model at the longer length from the
    start.
    `overrides` are KEY=VALUE of the further training or this machine, such as train.lr=0.002 or
    hydra/launcher=joblib; for a Hugging Face model, of its data. Finished work is reused. `print` shows the
    command's table, and `plot` draws it.

    to LENGTH: The longer length: a multiple of the training length, such as 4x, or tokens.
    with_ NAME,NAME: Encodings to continue with; 'NAME KEY=VALUE' sets options; repeatable.
        [default: yarn,rope_ntk,rope_pi]
    tokens NUMBER: Train further with each encoding at the longer length, on so many tokens, such as 128000
        or 1M.
    text DIR: The text files that hf:FOLDER is trained and scored on.
    train_layers NUMBER: Of hf:FOLDER, train only so many of the last layers, which needs less memory.
    long: Train the model also at the longer length from the start, on as many tokens as both stages
        together.
    lengths N,N: Context lengths to score, beside the training length, the longer length and their quarters.
        [default: the lengths of the runs up to twice the longer length]
    targets NUMBER: Target blocks at each length; fewer are scored sooner.  [default: those of the runs]
    results_dir DIR: The folder of runs and results.csv.

    Raises `UserError` (a `ValueError`) if something cannot work, and `RunError` if a job fails.
    """
    from pe_bench.commands.extend import extend_runs
    from pe_bench.values import (
        AtLeast1,
        check_texts,
        check_type,
        listed,
        listed_lengths,
        plain_value,
        read_count,
    )

    runs = _list_of_runs(runs)
    names = _names_of_runs("a run", runs)
    check_texts("with_", *listed(with_))
    count = plain_value(tokens)
    if isinstance(count, str):
        count = read_count(count)
    if count is not None:
        count = check_type(count, AtLeast1, "tokens")
    if train_layers is not None:
        train_layers = check_type(train_layers, AtLeast1, "train_layers")
    check_texts("overrides", *listed(overrides))
    is_long = check_type(long, bool, "long")
    chosen = [] if lengths is None else listed_lengths(lengths)
    chosen = check_type(chosen, list[AtLeast1], "lengths")
    target_count = check_type(plain_value(targets), AtLeast1 | None, "targets")
    folder = None if text is None else Path(text)
    return extend_runs(
        names,
        str(to),
        listed(with_),
        tokens=count,
        text=folder,
        train_layers=train_layers,
        long=is_long,
        lengths=chosen,
        targets=target_count,
        overrides=listed(overrides),
        results=_results_of(runs, results_dir),
    )


def results(
    results_dir: str | Path = "results",
    runs: "Run | str | Path | Sequence[Run | str | Path] | None" = None,
    *,
    where: str | Sequence[str] | None = None,
    by: str | None = None,
    best: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    protocol: str | None = None,
    slice: str | None = None,  # noqa: A002  (the option's name)
    tag: str | None = None,
) -> "pandas.DataFrame":
    """Return the results of all runs as a data frame: a row for each line of the report and each length.

        pe_bench.results(where=["seed<3", "length=128,512"], baseline="rope")

    The columns are those of `pe-bench report --csv`: bits_per_byte is the level, and change, change_low,
    change_high and verdict compare it with that at the training length on the same text. Seeds are averaged.
    `anchor` is true in the lines of models that need no training, such as (trigram). Runs are named by
    encodings, names or their beginnings.

    where CONDITION: Show only rows that meet the condition, such as encoding=rope,alibi or seed<3;
        repeatable.
    by KEY: Show a line for each value of a key, such as seed or train.lr.
    best KEY: Show only each encoding's best value of a key, such as train.lr, by validation loss.
    baseline NAME: The encoding, or hf:FOLDER, to compare the others with.
    margin NUMBER: A change of up to this many bits per byte counts as holding.
    protocol NAME: Show only scores by this protocol.
    slice NAME: Show only some of the targets: recall, novel or key (docs/measuring.md).
    tag NAME: Show only runs that were trained with tag=NAME.
    results_dir DIR: The folder of runs and results.csv.

    Raises `UserError` (a `ValueError`) if nothing was scored or a value cannot work, and `RunError` if all
    results are damaged.
    """
    options = dict(locals())
    runs = _list_of_runs(runs)
    options["results_dir"] = _results_of(runs, results_dir)
    from pe_bench.report.build import read_report
    from pe_bench.values import check_texts, check_type, listed

    options["runs"] = _names_of_runs("runs", runs)
    check_texts("where", *listed(where))
    for name in ("by", "best", "baseline", "protocol", "slice", "tag"):
        if options[name] is not None:
            check_texts(name, options[name])
    check_type(margin, float | None, "margin")
    from pe_bench.report.columns import to_frame

    return to_frame(read_report(**options, numbers_only=True).tables)


def try_change(
    change: str,
    *overrides: str,
    against: str = "rope",
    minutes: float = 5.0,
    lengths: str | Sequence[int] | None = None,
    confirm: bool = False,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    results_dir: str | Path = "results",
) -> "Outcome":
    """Try a change against a baseline: whether it is better, how sure that is, and what it costs.

        print(pe_bench.try_change("my.py:RootBias"))
        pe_bench.try_change("rope base=500000", "model=small", minutes=20).answer

    The change is an encoding with its options and +MODIFIER; overrides are KEY=VALUE for both sides. All runs
    train on the same number of tokens, 256,000 by default, and are kept.

    against NAME: The baseline, written like the change.
    minutes NUMBER: After the first seed, start no seeds if the next answer would come after so many minutes.
    lengths N,N: Context lengths to score; the training length and the longest decide.
        [default: 128,512,2048]
    confirm: Use other documents and seeds than any try has used.
    config_dir DIR: A folder with your encoding/NAME.yaml.
    results_dir DIR: The folder of runs and results.csv.

    Raises `UserError` before anything is written if something cannot work, and `RunError` if a run fails.
    """
    options = _without_arguments(locals(), "change", "overrides")
    from pe_bench.commands.try_change.trying import try_change
    from pe_bench.errors import require
    from pe_bench.system.signals import interruptible
    from pe_bench.values import check_texts, check_type, plain_value

    check_texts("a change, a baseline or an override", change, against, *overrides)
    check_type(plain_value(minutes), float, "minutes")
    check_type(confirm, bool, "confirm")
    _results_folder(results_dir)
    given = plain_value(lengths)
    if given is not None and not isinstance(given, str):
        check_type(given, list[int], "lengths")
        require(len(given) > 0, "lengths is an empty list: leave it out, or give lengths such as [128, 512]")

    with interruptible():
        return try_change(change, *overrides, **options)


def import_runs(
    folders: "Run | str | Path | Sequence[Run | str | Path]", results_dir: str | Path = "results"
) -> "Imported":
    """Copy finished runs from elsewhere into a folder of results, each whole or not at all.

    folders: runs, folders of runs, or other folders of results. Their anchors, such as (trigram), are not
    copied: `evaluate` counts them here. A run that already exists is left as it is. Returns the names of the
    runs that were copied and of those that existed, and why others were refused.

    results_dir DIR: The folder of runs and results.csv.

    Raises `UserError` (a `ValueError`) for a folder without runs.
    """
    from pe_bench.errors import require
    from pe_bench.runs.importing import import_runs

    names = _names_of_runs("folders", folders)
    require(bool(names), "no folder is given: name a run, a folder of runs or a folder of results")
    return import_runs(names, _results_folder(results_dir))


def _names_of_runs(argument: str, runs: Any) -> list[str]:
    """Return runs as a list of names and paths, [] for None. Raises `UserError` for values of other types.

    argument: the word for the value in messages. runs: one `Run`, name or path, or a list of these.
    """
    from pe_bench.values import check_texts

    names = [getattr(run, "path", run) for run in _list_of_runs(runs)]
    check_texts(argument, *names)
    return [*map(str, names)]


def _list_of_runs(runs: Any) -> list[Any]:
    """Return runs as a list: one `Run`, name or path, several of these, or None for an empty list."""
    from pe_bench.values import listed

    return [runs] if hasattr(runs, "path") else listed(runs)


def _results_of(runs: Sequence[Any], results_dir: Any) -> Path:
    """Return the folder of results as a path.

    In place of the default, it is the folder in which all given `Run` objects are, if that is one folder.
    Raises `UserError` for a value of another type.
    """
    from pe_bench.runs.typed import DEFAULT_RESULTS_DIR

    folder = _results_folder(results_dir)
    if folder != DEFAULT_RESULTS_DIR:
        return folder
    paths = [run.shown_path for run in runs if hasattr(run, "shown_path")]
    folders = {path.parent.parent for path in paths if path.parent.name == "runs"}
    return folders.pop() if len(folders) == 1 else folder


def _without_arguments(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the arguments of a call without the arguments of these names."""
    kept = dict(arguments)
    for name in names:
        del kept[name]
    return kept


def _results_folder(results_dir: Any) -> Path:
    """Return the folder of results as a path. Raises `UserError` for a value of another type."""
    from pe_bench.values import check_texts

    check_texts("results_dir", results_dir)
    return Path(results_dir)

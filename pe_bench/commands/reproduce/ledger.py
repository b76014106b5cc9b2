"""The ledger of claims: the outcome of each claim by stored scores, for each model size and each budget.

Nothing is trained: a claim is judged by the stored pieces of a study, or else by the study's table.
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from typing import Any

from pe_bench.commands.reproduce.claims import (
    NOT_SCORED,
    Judged,
    Measurements,
    StudyScores,
    judge_claim,
    series_of,
)
from pe_bench.commands.reproduce.explained import stored_shares
from pe_bench.commands.reproduce.outcomes import stored_levels
from pe_bench.commands.reproduce.papers import (
    KINDS_OF_RESTORING,
    WINDOW_PROTOCOLS,
    LedgerClaim,
    Paper,
    read_papers,
)
from pe_bench.commands.reproduce.pieces import StoredPieces
from pe_bench.commands.reproduce.study import Study, Sweep, read_study, spell_tokens, study_names
from pe_bench.commands.reproduce.tables import TableScores
from pe_bench.errors import require
from pe_bench.runs.rows import TASK, grouped
from pe_bench.values import unknown

DECIDED_OUTCOMES = ("holds", "contradicted")
CHANGES_BY_SETTING = "changes with size or budget"
NOT_RUN = "not run"
OUTCOMES = (*DECIDED_OUTCOMES, CHANGES_BY_SETTING, "unclear", NOT_RUN)
SHORT_OUTCOMES = {CHANGES_BY_SETTING: "changes"}
INDENT_WIDTH = max(map(len, DECIDED_OUTCOMES)) + 2
LEDGER_NOTE = (
    "Each claim is judged by stored scores alone, with 95 % intervals; Nx is N times the training length. "
    f"changes: it {CHANGES_BY_SETTING}. probe, tiny, small, base: models of 0.1, 0.8, 5 and 30 million "
    "parameters, with their training tokens. If the scores of a study's runs are not stored, its table "
    "decides, and more claims stay unclear than in the study's own report (docs/reproduce.md)."
)


@dataclass(frozen=True)
class ClaimAnswer:
    """The outcome of a claim by one sweep of a study."""

    study: str
    sweep: str
    model: str  # the name of a model size, or of a Hugging Face model
    tokens: int  # the tokens of training; 0 if unknown
    length: int  # the training length
    judged: Judged | None  # None for a sweep without any stored score

    @property
    def outcome(self) -> str:
        return self.judged.outcome if self.judged and self.is_scored else NOT_RUN

    @property
    def is_scored(self) -> bool:
        return self.judged is None or self.judged.measured.missing != NOT_SCORED

    @property
    def seeds(self) -> int:
        interval = self.judged.measured.interval if self.judged else None
        return interval.seeds if interval else 0

    @property
    def setting(self) -> tuple[str, int, int]:
        """Return the model, the training tokens and the training length."""
        return self.model, self.tokens, self.length

    @property
    def preference(self) -> tuple[bool, int, bool]:
        """Return the sort key of answers for one setting, of which the ledger keeps the largest.

        It has whether the sweep was run, the number of seeds, and whether the outcome is decided.
        """
        return self.outcome != NOT_RUN, self.seeds, self.outcome in DECIDED_OUTCOMES


@dataclass(frozen=True)
class LedgerEntry:
    """A claim of the ledger with an answer for each setting: a model size, training tokens and a length."""

    claim: LedgerClaim
    answers: Sequence[ClaimAnswer]

    @property
    def outcome(self) -> str:
        """Return the outcome that the claim's file states, else one of `OUTCOMES` by all settings.

        An unclear setting counts only if no setting holds or contradicts. If some settings hold and others
        contradict, the outcome changes with size or budget.
        """
        if self.claim.outcome:
            return self.claim.outcome
        outcomes = {answer.outcome for answer in self.answers}
        decided = [outcome for outcome in DECIDED_OUTCOMES if outcome in outcomes]
        if len(decided) > 1:
            return CHANGES_BY_SETTING
        if decided:
            return decided[0]
        return "unclear" if "unclear" in outcomes else NOT_RUN

    @property
    def sentence(self) -> str:
        """Return the claim in words, with the sweep's name if the claim is about the sweep."""
        claim = self.claim
        of, than = series_of(claim)
        if claim.of and not claim.than_sweep and claim.protocol != TASK:
            of = of._replace(sweep="")
            than = than._replace(sweep="")
        since = f"{claim.since:g}x"
        return claim.as_sentence(str(of), str(than), f"{claim.at:g}x", since)


class Ledger:
    """The ledger of all papers: `papers` has each claim of a paper with its outcomes, from stored scores."""

    def __init__(self) -> None:
        self._studies = {name: read_study(name) for name in study_names()}
        self._scores = {name: stored_scores(study) for name, study in self._studies.items()}
        self.papers = {paper: list(map(self._make_entry, paper.claims)) for paper in read_papers()}

    def _make_entry(self, claim: LedgerClaim) -> LedgerEntry:
        """Return the entry of a claim: for each setting, the preferred answer of the sweeps that test it."""
        own = {claim.study, *claim.also}
        answers = []
        for study, sweep in self._sweeps_that_test(claim):
            answer = self._answer_by_sweep(study, sweep, claim)
            if answer.study in own or answer.is_scored:
                answers.append(answer)
        by_setting = grouped(answers, lambda answer: answer.setting)
        best = []
        for _, alike in sorted(by_setting.items()):
            best.append(max(alike, key=lambda answer: answer.preference))
        return LedgerEntry(claim, best)

    def _sweeps_that_test(self, claim: LedgerClaim) -> Iterator[tuple[Study, Sweep]]:
        """Yield the sweeps that test a claim, each with its study; of sweeps with one name, the last."""
        for study in self._studies.values():
            sweeps: dict[str, Sweep] = {}
            own = self._studies.get(claim.study)
            for sweep in study.sweeps:
                is_named = claim.names_sweep(study.name, sweep.name)
                if is_named or is_tested_by(claim, study, sweep, own):
                    sweeps[sweep.name] = sweep
            for sweep in sweeps.values():
                yield study, sweep

    def _answer_by_sweep(self, study: Study, sweep: Sweep, claim: LedgerClaim) -> ClaimAnswer:
        """Return the outcome of a claim by one sweep of a study, judged by its stored scores."""
        scores = self._scores[study.name]
        tokens = study.tokens if sweep.after else sweep.tokens or study.tokens
        if sweep.hf_model:
            tokens = 0
        asked = claim
        if not claim.than_sweep:
            asked = replace(claim, sweep=sweep.name)
        judged = None
        if scores is not None and scores.labels(sweep.name):
            judged = judge_claim(asked, scores)
        return ClaimAnswer(study.name, sweep.name, model_of(study, sweep), tokens, study.length, judged)


def stored_scores(study: Study) -> StudyScores | None:
    """Return the scores of a study's stored pieces, else of its table; None if neither has a score."""
    pieces = StoredPieces(study)
    if pieces.read():
        return Measurements(pieces.folder, pieces.steps(), study.length, stored_shares(pieces))
    levels = stored_levels(study)
    return TableScores(levels, study.length) if levels else None


def is_tested_by(claim: LedgerClaim, study: Study, sweep: Sweep, own: Study | None) -> bool:
    """Return whether a sweep trains a claim's encodings as the claim means them, at its lengths.

    A claim between two sweeps, a later stage, a Hugging Face model and a prediction are tested only by their
    own sweep. A sweep with options for its encodings or with another tokenizer tests only the claims that
    name it. Only a study that explains its runs tests what a change restores. own: the study that the claim
    names.
    """
    if not claim.of or claim.than_sweep or claim.rule:
        return False
    if claim.kind in KINDS_OF_RESTORING and not study.explains:
        return False
    differs = any(text.startswith(("encoding.", "modifier", "tokenizer=")) for text in sweep.overrides)
    if differs or sweep.parent_sweep or sweep.hf_model:
        return False
    tasks = {""}
    if own is not None:
        tasks = {each.task for each in own.sweeps if each.name == claim.sweep}
    if sweep.task not in tasks:
        return False
    # Sweeps of one name are one sweep, whose encodings may have different numbers of seeds.
    alike = [each for each in study.sweeps if each.name == sweep.name]
    labels = set(chain.from_iterable(map(study.labels_of, alike)))
    scored = set(product(("paired", TASK), study.times))
    for scoring in study.scorings:
        scored |= {(scoring.protocol, time) for time in scoring.times}
    protocols = WINDOW_PROTOCOLS if claim.kind == "early_tokens" else (claim.protocol,)
    needed = set(product(protocols, (claim.at, claim.since)))
    return {claim.of, claim.than or claim.of} <= labels and needed <= scored


def model_of(study: Study, sweep: Sweep) -> str:
    """Return the name of a sweep's model size, or of its Hugging Face model."""
    if sweep.hf_model:
        return sweep.hf_model
    name = "probe" if sweep.task else "tiny"
    for override in (*study.overrides, *sweep.overrides):
        if override.startswith("model="):
            name = override.removeprefix("model=")
    return name


# Text and data


def render_ledger(papers: Mapping[Paper, Sequence[LedgerEntry]], width: int) -> str:
    """Return the ledger as text, paper by paper."""
    lines: list[str] = []
    for paper, entries in papers.items():
        lines += [f"{paper.paper}: {paper.title}", paper.link]
        for entry in entries:
            outcome = SHORT_OUTCOMES.get(entry.outcome, entry.outcome)
            lines.append(f"{outcome:<{INDENT_WIDTH}}{entry.sentence} ({entry.claim.origin})")
            if entry.answers:
                lines.append(" " * INDENT_WIDTH + spell_answers(entry.answers))
            if entry.claim.evidence:
                lines.append(" " * INDENT_WIDTH + f"measured: {entry.claim.evidence}")
        lines.append("")
    all_entries = list(chain.from_iterable(papers.values()))
    lines += [*outcome_count_lines(all_entries), LEDGER_NOTE]
    wrapped = chain.from_iterable(_wrap_line(line, width) for line in lines)
    return "".join(f"{line}\n" for line in wrapped)


def _wrap_line(line: str, width: int) -> list[str]:
    indent = " " * (INDENT_WIDTH if line[:INDENT_WIDTH].endswith("  ") else 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def spell_answers(answers: Sequence[ClaimAnswer]) -> str:
    """Return the settings by outcome: `holds: tiny 4M, 8M; contradicted: tiny 1M`."""
    parts = []
    for outcome in OUTCOMES:
        tokens_of_models: dict[str, list[str]] = {}
        for answer in answers:
            if answer.outcome == outcome:
                tokens_of_models.setdefault(answer.model, []).append(spell_tokens(answer.tokens))
        models = [f"{model} {', '.join(tokens)}" for model, tokens in tokens_of_models.items()]
        if models:
            settings = "; ".join(map(str.strip, models))
            parts.append(f"{outcome}: {settings}")
    return " | ".join(parts)


def outcome_count_lines(entries: Sequence[LedgerEntry]) -> Iterator[str]:
    """Yield a line with the number of claims by outcome, if any, then a line on predictions, if any."""
    claims = Counter(entry.outcome for entry in entries if not entry.claim.rule)
    if claims:
        counts = [f"{claims[outcome]} {SHORT_OUTCOMES.get(outcome, outcome)}" for outcome in OUTCOMES]
        yield f"claims: {claims.total()}: {', '.join(counts)}"
    predicted = Counter(entry.outcome for entry in entries if entry.claim.rule)
    if predicted:
        decided = f"{predicted['holds']} right, {predicted['contradicted']} wrong"
        others = f"{predicted['unclear']} unclear, {predicted[NOT_RUN]} not run"
        yield f"predictions: {predicted.total()}: {decided}, {others}"


def ledger_data(papers: Mapping[Paper, Sequence[LedgerEntry]]) -> list[dict[str, Any]]:
    """Return the ledger as plain data: a mapping for each paper, with its claims and their answers."""
    records = []
    for paper, entries in papers.items():
        claims = []
        for entry in entries:
            claim = asdict(entry.claim)
            answers = [_answer_data(answer) for answer in entry.answers]
            claims.append({**claim, "sentence": entry.sentence, "outcome": entry.outcome, "answers": answers})
        facts = {"name": paper.name, "paper": paper.paper, "title": paper.title, "link": paper.link}
        records.append({**facts, "rules": paper.rules, "claims": claims})
    return records


def _answer_data(answer: ClaimAnswer) -> dict[str, Any]:
    record = {"study": answer.study, "sweep": answer.sweep, "model": answer.model, "tokens": answer.tokens}
    record |= {"length": answer.length, "outcome": answer.outcome, "seeds": answer.seeds}
    interval = answer.judged.measured.interval if answer.judged else None
    if interval is not None:
        record |= {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return record


def chosen_papers(ledger: Ledger, names: Sequence[str]) -> Mapping[Paper, Sequence[LedgerEntry]]:
    """Return the papers with these names in any case, or all papers. Raises `UserError` for other names."""
    if not names:
        return ledger.papers
    known = [paper.name for paper in ledger.papers]
    chosen = [name.lower() for name in names]
    for name in chosen:
        require(name in known, unknown(name, "paper", known))
    return {paper: entries for paper, entries in ledger.papers.items() if paper.name in chosen}

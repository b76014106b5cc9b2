"""The ledger: claims of papers, and predictions, as data, with a YAML file for each paper in configs/claims.

A study of pe-bench tests the claims that name this study. A user's own study has its claims in its own file.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pe_bench.config.groups import config_dir
from pe_bench.config.schema import Protocol
from pe_bench.errors import UserError, first_line, require
from pe_bench.runs.untrusted import parse_mapping
from pe_bench.values import Positive, check_type, shown, unknown

CLAIMS_FOLDER = "claims"
NOT_IN_FILE = {"in_file": False}  # the metadata of a field that is no key of a YAML file
MEASURED = "measured"  # the kind of a claim that no study tests
ALIKE_BITS = 0.02  # bits per byte: levels that are closer count as alike
# The sentence of each kind of claim, and the quantity whose interval decides the claim.
KINDS_OF_TWO_ENCODINGS = {
    "order": ("{of} is better than {than} at {at}", "difference"),
    "loses_less": ("{of} loses less than {than} from its training length to {at}", "difference of changes"),
    "alike": (f"{{of}} lies within {ALIKE_BITS} of {{than}} at {{at}}", "difference"),
    "breaks_first": ("{of} breaks before {than}", "difference of changes"),
}
KINDS_OF_ONE_ENCODING = {
    "falls": ("{of} is better at {at} than at {first}", "change"),
    "rises": ("{of} is worse at {at} than at {first}", "change"),
    "changes_by": ("{of} changes by {bounds} from {first} to {at}", "change"),
    "holds": ("{of} holds up to {at}", "change"),
    "breaks": ("{of} degrades or fails at {at}", "change"),
    "early_tokens": ("{of} at {at}: nonoverlapping windows look worse", "nonoverlapping minus sliding"),
    "reads_far": ("{of} reads text beyond its training length at {at}", "loss without the far text"),
    "reads_past_window": ("{of} at {at} gains from text beyond its training length", "gain over the window"),
    "stays_in_window": ("{of} at {at} gains nothing beyond its training length", "gain over the window"),
    "solves": ("{of} solves examples of {at} tokens", "right"),
    "misses": ("{of} does not solve examples of {at} tokens", "right"),
    "restores": ("{of} at {at} regains over half of its loss with {change} in all layers", "share restored"),
    "restores_little": (
        "{of} at {at} regains under half of its loss with {change} in all layers",
        "share restored",
    ),
}
CLAIM_KINDS = KINDS_OF_TWO_ENCODINGS | KINDS_OF_ONE_ENCODING
# Kinds about levels at one length; about what a change of `explain` restores.
KINDS_OF_LEVELS = ("order", "alike")
KINDS_OF_RESTORING = ("restores", "restores_little")
WINDOW_PROTOCOLS = ("nonoverlapping", "sliding")


@dataclass(frozen=True)
class Claim:
    """A claim of a paper as data."""

    kind: str  # one of `CLAIM_KINDS`, or `MEASURED`
    source: str  # the place of the claim in the paper
    of: str = ""  # an encoding, named as in tables; by default the only one of a sweep, as it was trained
    at: Positive = 1.0  # the length over the training length
    than: str = ""  # the encoding that `of` is compared with, by default the same
    sweep: str = ""  # the sweep of the encoding `of`, if the study has several sweeps
    than_sweep: str = ""  # the sweep of the encoding `than`; empty for `sweep`
    protocol: Protocol = "paired"
    since: Positive = 1.0  # the length from which a change is measured, over the training length
    low: float | None = None  # the lower bound of a change, in bits per byte; None for no bound
    high: float | None = None  # the upper bound of a change; None for no bound
    change: str = ""  # a change of `explain`, for a claim about what restores a loss
    text: str = ""  # the sentence of a claim of the kind `MEASURED`

    @property
    def bounds(self) -> str:
        """Return the bounds of a change in words; empty for a claim without any."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "" if self.high is None else f"at most {self.high:g}"

    def as_sentence(self, of: str, than: str, at: str, first: str) -> str:
        """Return the claim as a sentence. of, than: encodings; at, first: the lengths of `at` and `since`."""
        if self.kind == MEASURED:
            return self.text
        sentence, _ = CLAIM_KINDS[self.kind]
        parts = {"of": of, "than": than, "at": at, "first": first}
        text = sentence.format(**parts, bounds=self.bounds, change=f"'{self.change}'")
        return f"{text} ({self.protocol} windows)" if self.protocol in WINDOW_PROTOCOLS else text


@dataclass(frozen=True)
class LedgerClaim(Claim):
    """A claim of a paper, or a prediction, with the studies that test it."""

    source: str = ""
    # The study that tests the claim; if empty, all studies with the claim's encodings test it.
    study: str = ""
    also: dict[str, str] = field(default_factory=dict)  # other studies that test it, and their sweeps
    # Of a claim of the kind `MEASURED`: the outcome, and the measurement with its place.
    outcome: Literal["", "holds", "contradicted", "unclear", "not run"] = ""
    evidence: str = ""
    rule: str = ""  # the rule of a prediction, a key of its file's `rules`; empty for a claim of a paper

    @property
    def origin(self) -> str:
        """Return the source of the claim: the place in a paper, or the rule of a prediction."""
        if not self.rule:
            return self.source
        prediction = f"prediction: {self.rule}"
        return f"{prediction}; {self.source}" if self.source else prediction

    def names_sweep(self, study: str, sweep: str) -> bool:
        """Return whether the claim names this sweep of a study."""
        return (study, sweep) in ((self.study, self.sweep), *self.also.items())


@dataclass(frozen=True, eq=False)
class Paper:
    """A file of the ledger: a paper, its claims, and the rules of its predictions."""

    paper: str  # authors and year
    title: str
    link: str
    claims: tuple[LedgerClaim, ...]
    rules: dict[str, str] = field(default_factory=dict)  # the rules from which predictions follow
    name: str = field(default="", metadata=NOT_IN_FILE)  # the name of the file


@cache
def read_papers() -> tuple[Paper, ...]:
    """Return the files of the ledger in the order of their names. Raises `UserError` for an invalid file."""
    paths = (config_dir() / CLAIMS_FOLDER).glob("*.yaml")
    return tuple(map(_read_paper, sorted(paths)))


def ledger_claims(study: str) -> tuple[LedgerClaim, ...]:
    """Return the claims of the ledger that a study of pe-bench tests, paper by paper."""
    claims: list[LedgerClaim] = []
    for paper in read_papers():
        for claim in paper.claims:
            if claim.study == study:
                claims.append(claim)
            elif study in claim.also:
                source = f"{paper.paper}, {claim.source}"
                sweep = claim.also[study]
                claims.append(replace(claim, study=study, sweep=sweep, also={}, source=source))
    return tuple(claims)


def _read_paper(path: Path) -> Paper:
    try:
        values = parse_mapping(path.read_text(encoding="utf-8"))
        paper: Paper = parse_record(Paper, values, "paper", {"claims": LedgerClaim})
        for claim in paper.claims:
            check_claim(claim)
            message = f"a claim needs a source, or a rule, one of: {', '.join(paper.rules) or 'none'}"
            require(bool(claim.source) or claim.rule in paper.rules, message)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {first_line(error)}") from error
    return replace(paper, name=path.stem)


def check_claim(claim: Claim) -> None:
    """Raise `UserError` for an unknown kind, and for a claim that lacks what its kind needs."""
    kinds = (*CLAIM_KINDS, MEASURED)
    require(claim.kind in kinds, unknown(claim.kind, "kind of claim", kinds))
    has_bounds = claim.low is not None or claim.high is not None
    require(has_bounds or claim.kind != "changes_by", "a claim of kind changes_by needs low or high")
    has_change = claim.kind not in KINDS_OF_RESTORING or bool(claim.change)
    require(has_change, f"a claim of kind {claim.kind} needs change, the name of a change of explain")
    # `than` is by default the encoding of `of`, and `than_sweep` its sweep.
    second = claim.than or claim.of, claim.than_sweep or claim.sweep
    message = f"a claim of kind {claim.kind} compares two encodings, and this one compares '{claim.of}' with"
    way_out = "itself: name the other with than, or its sweep with than_sweep"
    is_of_two = second != (claim.of, claim.sweep)
    require(is_of_two or claim.kind not in KINDS_OF_TWO_ENCODINGS, f"{message} {way_out}")
    if claim.kind == MEASURED:
        is_whole = isinstance(claim, LedgerClaim) and bool(claim.text and claim.outcome)
        require(is_whole, f"a claim of kind {MEASURED} belongs in configs/claims and needs text and outcome")


def parse_record(kind: type[Any], values: Any, key: str, parts: Mapping[str, type]) -> Any:
    """Return a mapping from a YAML file as an instance of the dataclass `kind`, its values checked.

    Raises `UserError`, which names `key`, for unknown and missing keys, and for values of another type.
    parts: the dataclasses of the records in lists, by the key of the list.
    """
    require(isinstance(values, Mapping), f"{key} must hold keys and values, not {shown(values)}")
    types = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        if not each.metadata.get("in_file", True):
            del types[each.name]
    checked_values: dict[str, Any] = {}
    for name, value in values.items():
        require(name in types, unknown(str(name), f"key of {key}", types))
        full_name = f"{key}.{name}"
        part = parts.get(name)
        if part is None:
            checked_values[name] = check_type(value, types[name], full_name)
        else:
            records = check_type(value, list[Any], full_name)
            numbered = enumerate(records)
            checked_values[name] = tuple(
                parse_record(part, record, f"{full_name}[{number}]", parts) for number, record in numbered
            )
    absent: list[str] = []
    for each in fields(kind):
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        if not has_default and each.name not in checked_values:
            absent.append(each.name)
    require(not absent, f"{key} needs {', '.join(absent)}")
    return kind(**checked_values)

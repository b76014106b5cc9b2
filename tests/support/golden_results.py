"""Folders of results of which the reports are kept as text, each with its options of `report`."""

from collections.abc import Callable
from pathlib import Path

from support.results import add_run

LENGTHS = {32: 3.4, 128: 3.0, 160: 3.005, 256: 3.06, 512: 3.4, 1024: 4.0, 2048: 4.6}


def shifted(amount: float, growth: float = 1.0) -> dict[int, float | None]:
    """Return levels that lie so much higher, and grow so many times as fast past the training length."""
    return {length: amount + 3.0 + growth * (level - 3.0) for length, level in LENGTHS.items()}


def one_run(results: Path) -> None:
    add_run(results, "rope", shifted(0))


def three_encodings(results: Path) -> None:
    add_run(results, "rope", shifted(0))
    add_run(results, "alibi", shifted(0.1, 0.0), spread=0.002)
    add_run(results, "learned", {**shifted(0.2), **dict.fromkeys((160, 256, 512, 1024, 2048))})


def five_seeds(results: Path) -> None:
    for seed in range(5):
        add_run(results, "rope", shifted(0.003 * seed, 1 + 0.1 * seed), seed=seed)
        add_run(results, "alibi", shifted(0.1 - 0.004 * seed, 0.01 * seed), seed=seed, spread=0.002)
        add_run(results, "t5", shifted(-0.05 + 0.01 * seed, -0.2 + 0.1 * seed), seed=seed)


def used_context(results: Path) -> None:
    for seed in range(3):
        add_run(results, "rope", {128: 3.0, 512: 2.9, 2048: 2.85}, seed=seed, spread=0.002)
        add_run(results, "nope", {128: 3.1, 512: 3.1, 2048: 3.3}, seed=seed, spread=0.002)
        for control, level in (("window", 2.99), ("swap", 2.97)):
            add_run(results, "rope", {512: level}, seed=seed, spread=0.002, control=control)
            add_run(results, "nope", {512: level + 0.11}, seed=seed, spread=0.002, control=control)


def scalings(results: Path) -> None:
    for seed in range(2):
        add_run(results, "rope", shifted(0), seed=seed)
        for name, growth in (("yarn factor=4", 0.1), ("rope_pi factor=4", 0.4)):
            changed = {"scored_with": name, "forced": True, "seed": seed}
            add_run(results, "rope", {256: 3 + 0.06 * growth, 512: 3 + 0.4 * growth}, **changed)


def protocols(results: Path) -> None:
    add_run(results, "rope", shifted(0), sliding=64)
    add_run(results, "rope", shifted(0), sliding="half", seed=1)
    add_run(results, "alibi", {128: 3.1, 256: 3.1}, protocol="nonoverlapping")


def two_settings(results: Path) -> None:
    add_run(results, "rope", shifted(0))
    add_run(results, "alibi", shifted(0.1), setting="0ther123", train_length=64, steps=500)


def hostile_names(results: Path) -> None:
    add_run(results, "my_%$&#encoding <b> base=1e4|x", shifted(0))
    add_run(results, "a_name_that_is_far_too_long_for_any_column_of_a_table theta=500000.0", shifted(0.1))


FOLDERS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "one_run": (one_run, []),
    "three_encodings": (three_encodings, []),
    "five_seeds": (five_seeds, ["--baseline", "rope"]),
    "used_context": (used_context, []),
    "scalings": (scalings, []),
    "protocols": (protocols, ["--all"]),
    "two_settings": (two_settings, ["--all", "--sort", "512"]),
    "hostile_names": (hostile_names, []),
}
FORMATS = {
    "80 columns": (80, []),
    "120 columns": (120, []),
    "details": (120, ["--details"]),
    "Markdown": (80, ["--markdown", "-"]),
    "LaTeX": (80, ["--latex", "-"]),
    "CSV": (80, ["--csv", "-"]),
}

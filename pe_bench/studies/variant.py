"""A study as it is run: at full size or as a toy, on one of two texts; its overrides and lengths."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from pe_bench.config.override import quote
from pe_bench.data.sources import files_in
from pe_bench.runs.identity import IDENTITY_VERSION
from pe_bench.studies.definition import (
    GROUP,
    MAX_QUICK_TOKENS,
    QUICK_LENGTH,
    QUICK_OVERRIDES,
    QUICK_SEEDS,
    QUICK_SHARE,
    Study,
    Sweep,
)

STDLIB = "stdlib"
CODE = (".yaml", ".py")


@dataclass(frozen=True)
class Variant:
    """A study, its size and its text: `stdlib`, or a folder with text files.

    search: folders with the user's own YAML.
    """

    study: Study
    is_quick: bool = False
    text: str = STDLIB
    search: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return "quick" if self.is_quick else "full"

    @property
    def progress_name(self) -> str:
        """Return the name of the file with its progress, another one for each size and kind of text."""
        size = "-quick" if self.is_quick else ""
        return f"{self.study.name}{size}{'' if self.text == STDLIB else '-files'}"

    @property
    def seeds(self) -> int:
        return min(self.study.seeds, QUICK_SEEDS) if self.is_quick else self.study.seeds

    @property
    def length(self) -> int:
        """Return the training length."""
        return QUICK_LENGTH if self.is_quick else self.study.length

    def lengths(self, times: Iterable[float]) -> list[int]:
        return sorted({round(time * self.length) for time in times})

    def key(self, sweep: Sweep) -> str:
        """Return all that determines a sweep's runs: overrides, software versions, and the user's files."""
        made_with = f"identity {IDENTITY_VERSION}, Python {python_version()}, torch {version('torch')}"
        return f"{made_with}{self._files}: {' '.join(self.overrides(sweep))}"

    @property
    def _files(self) -> str:
        """Return a hash of the state of the text's files and the user's encodings; empty without any."""
        own = [path for folder in self.search for path in folder.glob("*/*") if path.suffix in CODE]
        files = [path for path in own if path.parent.name != GROUP]
        files += [] if self.text == STDLIB else files_in(Path(self.text), "--text")
        states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files)]
        return f", files {sha256(repr(states).encode()).hexdigest()[:8]}" if states else ""

    def overrides(self, sweep: Sweep) -> list[str]:
        """Return the overrides of `train -m` that make the runs of a sweep."""
        return [*self._plain_overrides(sweep), f"encoding={','.join(sweep.encodings)}", self._seed_override]

    def overrides_of_one(self, sweep: Sweep) -> list[str]:
        """Return the overrides of `train` that make one run of a sweep."""
        return [*self._plain_overrides(sweep), f"encoding={sweep.encodings[0]}"]

    @property
    def _seed_override(self) -> str:
        return f"seed={','.join(map(str, range(self.seeds)))}"

    def _plain_overrides(self, sweep: Sweep) -> Iterator[str]:
        study = self.study
        tokens = sweep.tokens or study.tokens
        if sweep.task:
            yield f"task={sweep.task}"
        elif self.text == STDLIB:
            yield f"data={STDLIB}"
        else:
            yield from ("data=files", f"data.path={quote(self.text)}")
        yield from QUICK_OVERRIDES if self.is_quick else ()
        yield f"train.length={self.length}"
        yield f"train.tokens={min(tokens // QUICK_SHARE, MAX_QUICK_TOKENS) if self.is_quick else tokens}"
        lengths = self.lengths(study.times)
        yield f"eval.lengths=[{','.join(map(str, lengths))}]"
        yield from () if sweep.task else (f"eval.max_length={lengths[-1]}",)
        yield from study.overrides
        yield from sweep.overrides
        yield from study.quick.overrides if self.is_quick and study.quick else ()

"""What a caller of `evaluate` or of `pe-bench eval` asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pe_bench.errors import require
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.other_encodings import WithOption


@dataclass(frozen=True)
class Request:
    """The changes of a run's configuration for a scoring; None leaves the run's own.

    evaluation: keys of `eval`. machine: device, threads and cache_dir. code: trusted files of custom
    encodings. data_path: where the data is now. others: encodings to score the weights under too.
    judge: a run whose scores decide which targets are key. probe: the needles to score in the place of a
    protocol's lengths.
    """

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    code: Sequence[Path] = ()
    data_path: Path | None = None
    others: WithOption = field(default_factory=WithOption)
    judge: Path | None = None
    probe: Probe | None = None

    def check_code(self) -> None:
        """Raise `UserError` for a path of code that is not a file."""
        for path in self.code:
            require(path.is_file(), f"--code {path} is not a file")

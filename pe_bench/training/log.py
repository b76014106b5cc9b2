"""The rows of train.csv: one for each logged step."""

import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pe_bench.errors import RunError, first_line
from pe_bench.runs.untrusted import read_regular
from pe_bench.system.files import write_text


@dataclass(frozen=True)
class Step:
    """The facts of one step; one in `train.log_every` is a row of train.csv."""

    step: int
    tokens: int
    loss: float  # nats per token, of this step's batch
    validation_loss: float | None
    lr: float
    gradient_norm: float
    seconds: float  # spent in steps, since the start of the run


def read_log(path: Path, last_step: int) -> list[Step]:
    """Return the rows up to a step; later steps are taken again."""
    if last_step == 0:
        return []
    try:
        text = io.StringIO(read_regular(path), newline="")
        rows = [_parse_step(record) for record in csv.DictReader(text)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise RunError(
            f"{path} is damaged ({first_line(error)}): delete it and repeat the command"
        ) from error
    return [row for row in rows if row.step <= last_step]


def _parse_step(record: dict[str, str]) -> Step:
    validation = record["validation_loss"]
    return Step(
        step=int(record["step"]),
        tokens=int(record["tokens"]),
        validation_loss=float(validation) if validation else None,
        **{name: float(record[name]) for name in ("loss", "lr", "gradient_norm", "seconds")},
    )


def write_log(path: Path, log: list[Step]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Step)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(step) for step in log)
    write_text(path, text.getvalue())

"""The steps of a training: the rows of train.csv, one for each logged step, and their display."""

import csv
import io
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pe_bench.errors import RunError, first_line
from pe_bench.runs.untrusted import read_regular
from pe_bench.system.files import write_text
from pe_bench.system.terminal import LINES_PER_RUN, Bar, duration


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


class TrainingProgress:
    """A display of loss, tokens per second and the time left, after each step."""

    def __init__(self, bar: Bar, total_steps: int, batch_tokens: int):
        self.bar, self.total, self.batch_tokens = bar, total_steps, batch_tokens
        self.started: tuple[int, float] | None = None

    def __call__(self, step: Step) -> None:
        now = time.perf_counter()
        if self.started is None:
            # The first step warms up, and a resumed run does not begin at zero.
            self.started = (step.step, now)
        first, since = self.started
        speed = (step.step - first) * self.batch_tokens / max(now - since, 1e-9) if step.step > first else 0.0
        left = (self.total - step.step) * self.batch_tokens / speed if speed else 0.0
        text = f"step {step.step} of {self.total}  loss {step.loss:.3f}"
        if speed:
            text += f"  {speed:,.0f} tokens/s  {duration(left)} left"
        due = step.step * LINES_PER_RUN // self.total > (step.step - 1) * LINES_PER_RUN // self.total
        self.bar.show(step.step, text, text if due else None)

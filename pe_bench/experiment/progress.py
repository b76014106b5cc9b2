"""Progress of training and scoring: a bar on a terminal, plain lines elsewhere."""

import time

from pe_bench.system.progress import LINES_PER_RUN, Bar, duration
from pe_bench.training.log import Step


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


class ScoringProgress:
    """A count of finished lengths, with the share of the one that is being scored."""

    def __init__(self, bar: Bar):
        self.bar = bar
        self.finished = 0

    def __call__(self, protocol: str, length: int, share: float) -> None:
        self.finished += share == 1.0
        done = self.finished + (share if share < 1.0 else 0.0)
        text = f"scoring, {protocol}, length {length:,}"
        self.bar.show(done, text, f"{protocol}, length {length:,} scored" if share == 1.0 else None)

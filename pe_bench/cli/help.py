"""Help pages: plain names for what is typed, the most used keys of `train`, one example a line."""

from typing import Any

from typer.core import TyperCommand

MOST_USED = (
    *("encoding", "model", "data", "seed", "threads"),
    *("train.length", "train.steps", "train.lr", "eval.lengths", "results_dir"),
)
LONGEST_NAME = 32  # columns that a name may take beside its meaning


class Command(TyperCommand):
    """A command whose help shows no types of Python, and ends in its examples: the lines of `epilog`."""

    def records(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return arguments and options, each by what is typed and what it means."""
        arguments, options = [], []
        parameters: list[Any] = list(self.get_params(ctx))
        for param in parameters:
            if param.param_type_name == "argument":
                arguments.append((param.metavar, param.help))
                continue
            if param.metavar is None:
                param.metavar = "FILE" if "path" in param.display_type(ctx).lower() else "VALUE"
            if record := param.get_help_record(ctx):
                options.append(record)
        return {"Arguments": arguments, "Options": options}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, rows in self.records(ctx).items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=LONGEST_NAME)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class TrainCommand(Command):
    """The command whose arguments are keys of the configuration."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from pe_bench.config.groups import keys

        known = {key.name: key for key in keys()}
        with formatter.section("Most used keys, with their defaults (all: pe-bench list keys)"):
            formatter.write_dl([(f"{name}={known[name].default}", known[name].meaning) for name in MOST_USED])
        super().format_epilog(ctx, formatter)

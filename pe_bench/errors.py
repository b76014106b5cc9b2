"""The exceptions whose text is written for the person at the keyboard, and what words them."""

from pathlib import Path


class UserError(ValueError):
    """A mistake in the input: shown as one line, without a traceback, with exit code 2.

    The text names the value that was given, the value that was needed, and the way out.
    """


class RunError(RuntimeError):
    """A failure although the input was right (a full disk, a lost run): one line, exit code 1."""


def require(condition: bool, message: str) -> None:
    """Raise `UserError` with `message` unless `condition` holds."""
    if not condition:
        raise UserError(message)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra: `scripts/install` in a checkout, else pip."""
    is_checkout = (Path(__file__).parents[1] / "scripts" / "install").is_file()
    return f"scripts/install {extra}" if is_checkout else f"pip install 'pe-bench[{extra}]'"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something, for a message of one line.

    The system's errors are put plainly: `folder/file: not a directory`.
    """
    if isinstance(error, OSError) and error.strerror:
        reason, name = error.strerror, error.filename
        return f"{name}: {reason[0].lower()}{reason[1:]}" if name is not None else reason
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)

"""Words and columns that all verbs share: what to type next, counts, tables. Knows no run."""

import os
import shlex
from collections.abc import Sequence

INTERPRETERS = {".py": "python", ".sh": "bash"}


def command_line(verb: str, run: str, *options: str) -> str:
    """What to type for one more look at a run."""
    return shlex.join(["python", "-m", "hpcddp", verb, run, *options])


def resume_hint(run: str) -> str:
    """What to type where nothing starts a run again by itself."""
    return f"`{command_line('resume', run)}` goes on"


def own_program(file: str) -> str:
    """What starts this file in a job: a script by its interpreter, another one by its path."""
    interpreter = INTERPRETERS.get(os.path.splitext(file)[1])
    path = file if os.path.dirname(file) or interpreter else f"./{file}"
    return f"-- {interpreter} {path}" if interpreter else f"-- {path}"


def count_text(number: int | None, noun: str) -> str:
    """`1 node`, `2 processes`; `? nodes` where the number is not known."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{'?' if number is None else number} {noun if number == 1 else plural}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns; the last column keeps its own width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]

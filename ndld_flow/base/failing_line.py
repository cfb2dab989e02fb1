"""The line of a person's Python file that an error came from."""

from __future__ import annotations

from pathlib import Path


def failing_line(error: BaseException, path: Path) -> str:
    """`:12`, the innermost line of the file that the error came through; empty when it came through none."""
    file = path.absolute()
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).absolute() == file:
        return f":{error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).absolute() == file:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line

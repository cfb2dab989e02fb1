"""In the place of `ssh`: a target that answers each message with lines from a file, its first argument.

The file has, as JSON, the size of the first program, the answers by the kind of the question (lists of lines, or of
lists: a line, then a file or a text whose bytes follow), and `first`, the answers to the first request.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def write(answer: str | list[str]) -> None:
    line, follows = (answer, "") if isinstance(answer, str) else answer
    data = Path(follows).read_bytes() if follows.startswith("/") else follows.encode()
    sys.stdout.buffer.write(line.encode() + b"\n" + data)
    sys.stdout.buffer.flush()


def main() -> None:
    answers: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    source = sys.stdin.buffer
    source.read(answers["program_bytes"])
    source.readline()
    for answer in answers["first"]:
        write(answer)
    for line in source:
        question = json.loads(line)
        if question["kind"] == "send":
            source.read(question["size_bytes"])
        place = f"fetch {question['path']}" if question["kind"] == "fetch" else question["kind"]
        for answer in answers.get(place, []):
            write(answer)


if __name__ == "__main__":
    main()

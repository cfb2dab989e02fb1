"""Questions about the nodes of models, answered in forked processes: a model may crash the library that reads it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.processes.fork_server import ForkServer
from ndld_flow.reduce.part import CutError, NodeFacts, Opened, Whole

_QUESTION, _ANSWER, _MODEL = "question.json", "answer.json", "model.onnx"
_TIME_S = 600.0


class Inspector:
    """Asks about models in files."""

    def __init__(self, server: ForkServer, scratch: Path) -> None:
        self._server, self._scratch, self._numbers = server, scratch, itertools.count(1)

    def list_nodes(self, path: Path) -> list[NodeFacts]:
        """Return the nodes of a model's main graph, in their order, except constants. Raises RequestError."""
        answer, _ = self._ask("list_nodes", path=str(path))
        return [NodeFacts.model_validate(node) for node in answer]

    def count_nodes(self, path: Path) -> int:
        """Return the number of nodes of a model, with those in bodies and functions, without constants."""
        answer, _ = self._ask("count_nodes", path=str(path))
        return int(answer)

    def open_node(self, whole: Whole, kept: Collection[int], index: int) -> tuple[Path, Opened] | None:
        """Return a model in which a node is replaced by its body; None if that is impossible."""
        try:
            answer, path = self._ask("open_node", whole=whole.model_dump(mode="json"), kept=sorted(kept), index=index)
        except CutError:
            return None
        return path, Opened.model_validate(answer)

    def list_body_nodes(self, path: Path, kept: Collection[int]) -> list[str]:
        """Return names for the nodes in bodies that constants can replace."""
        answer, _ = self._ask("list_body_nodes", path=str(path), kept=sorted(kept))
        return list(answer)

    def hollow(self, path: Path, kept: Collection[int], needed: Collection[str]) -> Path | None:
        """Return a model whose nodes in bodies are constants, except those that are needed; None if none can be."""
        try:
            return self._ask("hollow", path=str(path), kept=sorted(kept), needed=sorted(needed))[1]
        except CutError:
            return None

    def _ask(self, question: str, **given: Any) -> tuple[Any, Path]:  # noqa: ANN401 - JSON
        folder = self._scratch / f"question-{next(self._numbers)}"
        folder.mkdir()
        (folder / _QUESTION).write_text(json.dumps({"question": question, **given}), encoding="utf-8")
        ended = self._server.call("ndld_flow.reduce.inspect_model:answer_question", folder, _TIME_S)
        if not (folder / _ANSWER).exists():
            how = ended.signal_name or ended.output[-300:]
            raise RequestError(f"the process that reads the model ended with {how}")
        answer = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
        if "error" in answer:
            raise CutError(answer["error"])
        return answer["answer"], folder / _MODEL


def answer_question(folder: Path) -> None:
    """Answer the question in a folder."""
    given = json.loads((folder / _QUESTION).read_text(encoding="utf-8"))
    try:
        answer = {"answer": _answer(given.pop("question"), given, folder / _MODEL)}
    except NdldFlowError as error:
        answer = {"error": str(error)}
    (folder / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")


def _answer(question: str, given: dict[str, Any], target: Path) -> Any:  # noqa: ANN401 - JSON
    from ndld_flow.reduce import bodies, cutting

    path = Path(given.get("path", ""))
    if question == "list_nodes":
        return [node.model_dump(mode="json") for node in cutting.list_nodes(path)]
    if question == "count_nodes":
        return cutting.count_nodes(path)
    if question == "open_node":
        whole = Whole.model_validate_json(json.dumps(given["whole"]))
        return bodies.open_node(whole, given["kept"], given["index"], target).model_dump(mode="json")
    if question == "list_body_nodes":
        return bodies.list_body_nodes(path, given["kept"])
    bodies.hollow(path, given["kept"], given["needed"], target)
    return None

"""Replace Loops that are LSTMs by LSTM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NodeSelect, Select

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class LoopToLstm(Operation):
    """Replace Loops whose iteration is the step of an LSTM, as models of TensorFlow have them, by LSTM.

        loop_to_lstm: {}

    A Loop is replaced if its data flow shows that it computes an LSTM over a whole sequence, with constant weights; a
    mask over time, as Keras writes it, may leave out steps. Others stay, with the reason in the record. Outputs differ
    by rounding, and sequences must have at least one step.
    """

    heading = "transformations"
    keeps_outputs = True

    select: Select = NodeSelect(op_type=("Loop",))
    """Loops; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when no Loop is replaced."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, label
        from ndld_flow.graph.edit.loop_bodies import LoopBody, UnlikeError
        from ndld_flow.graph.edit.lstm_loops import match_lstm
        from ndld_flow.graph.edit.lstm_nodes import FIRST_OPSET, replace_by_lstm
        from ndld_flow.graph.sanitize.edits import is_standard

        edits, reasons, done = OperationEdits(edited), [], 0
        nodes = edited.select_nodes(self.select, allow_empty=True)
        for loop in [node for node in nodes if node.op_type == "Loop" and is_standard(node)]:
            name = label(loop)
            try:
                if edits.opset_of(loop) < FIRST_OPSET:
                    raise UnlikeError(f"opset {edits.opset_of(loop)} is older than {FIRST_OPSET}")
                with known_shapes(edited.model):  # again for each: a Loop may read the output of another
                    replace_by_lstm(edits, loop, match_lstm(LoopBody(edits, loop)))
                done += 1
            except UnlikeError as error:
                reasons.append(f"{name} stays: {error}")
            except RecursionError:  # in the match, which changes nothing
                reasons.append(f"{name} stays: its body is too deep to be understood")
        for reason in reasons:
            edited.note(reason)
        if not done and not self.allow_empty:
            reason = reasons[0] if reasons else "there is none among the selected nodes"
            raise RequestError(f"no Loop is replaced by LSTM: {reason}; `allow_empty: true` accepts that")
        return f"{counted(done, 'Loop')} replaced by LSTM"

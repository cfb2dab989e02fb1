"""The record of a run that has not come to its end: of one at work, and of one that an error or a person ended."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.text import shortened, visible_name, visible_text
from ndld_flow.records.outcome import ENDINGS, RunOutcome, outcome_of_code
from ndld_flow.records.run_record import RunFailure, RunRecord
from ndld_flow.records.step_record import Outcome, RunStep
from ndld_flow.runner.conclude import Ended, decide_gates, describe_ended
from ndld_flow.runner.events import RunFailed, Said
from ndld_flow.runner.runs import FOLDER_LEASE
from ndld_flow.runner.state import RunState
from ndld_flow.runner.unit_work import skip_step
from ndld_flow.store.hidden_credentials import hide_credentials

_LONGEST_MESSAGE = 5_000
_LONGEST_LINE = 500
_LONGEST_TRACEBACK = 20_000


def note_progress(run: RunState) -> None:
    """Write down how far a run is, so that a folder is there whatever happens to this program.

    Raises OSError.
    """
    from ndld_flow.runner.run_folder import write_progress

    if not run.opened:
        run.held.enter_context(run.outputs.store.locks.lease(FOLDER_LEASE, run.id))
    write_progress(_describe(run, "running", None), run.outputs, opened=run.opened)
    run.opened = True


@contextlib.contextmanager
def recording_failure(run: RunState) -> Iterator[None]:
    """Leave a folder with record, log and report of a run that does not come to its end; what was raised goes on."""
    with run.held:
        try:
            yield
        except BaseException as error:
            _leave_folder(run, error)
            raise


def _leave_folder(run: RunState, error: BaseException) -> None:
    """Write the folder of a run that this error ended; where that cannot be done, say why and leave what is there."""
    from ndld_flow.runner.run_folder import write_run_folder

    failure = _describe_failure(run, error)
    outcome = outcome_of_code(failure.exit_code)
    with contextlib.suppress(BrokenPipeError):  # nobody reads what is said
        try:
            record = _describe(run, outcome, failure)
            folder = write_run_folder(record, run.outputs, opened=run.opened)
            run.listener(
                RunFailed(
                    outcome=outcome,
                    steps=failure.steps,
                    message=failure.message,
                    exit_code=failure.exit_code,
                    run=f"{record.recipe_name}/{record.id}",
                    folder=str(folder),
                    report=str(folder / "report.html"),
                )
            )
        except BrokenPipeError:
            raise
        except Exception as trouble:  # it must not take the place of what ended the run
            place = f"; what is known is in {run.outputs.runs / run.recipe.name / run.id}" if run.opened else ""
            told = f"the report of this failure cannot be written ({visible_name(str(trouble))}){place}"
            run.listener(Said(text=told))


def _describe_failure(run: RunState, error: BaseException) -> RunFailure:
    at_work = [step.name for step in run.at_work]
    named = [name for name in at_work if f"step {name}: " in str(error)]
    steps = tuple(named or at_work)
    return RunFailure(
        steps=steps,
        message=shortened(hide_credentials(visible_text(_say(error, steps))), _LONGEST_MESSAGE),
        exit_code=_exit_code(error),
        traceback=_trace(error),
        log_lines={name: tuple(map(log_line, run.logs[name])) for name in steps if run.logs.get(name)},
    )


def _say(error: BaseException, steps: tuple[str, ...]) -> str:
    if _exit_code(error) == ENDINGS["interrupted"].exit_code:
        return f"interrupted while {' and '.join(steps)} was at work" if steps else "interrupted between two steps"
    return str(error) if isinstance(error, NdldFlowError) else f"{type(error).__name__}: {error}"


def _exit_code(error: BaseException) -> int:
    if isinstance(error, NdldFlowError):
        return error.exit_code
    # Whoever reads what a run prints and goes away has ended it as Ctrl-C does.
    is_bug = isinstance(error, Exception) and not isinstance(error, BrokenPipeError)
    return ENDINGS["bug" if is_bug else "interrupted"].exit_code


def _trace(error: BaseException) -> str:
    if _exit_code(error) != ENDINGS["bug"].exit_code:
        return ""
    text = hide_credentials(visible_text("".join(traceback.format_exception(error))))
    return shortened(text, _LONGEST_TRACEBACK)


def log_line(line: str) -> str:
    """Return a line of a log as a record keeps it."""
    return shortened(hide_credentials(visible_name(visible_text(line))), _LONGEST_LINE)


def _describe(run: RunState, outcome: RunOutcome, failure: RunFailure | None) -> RunRecord:
    gates = decide_gates(run, as_far_as_known=True)
    steps = tuple(_steps(run, outcome, failure.steps if failure is not None else ()))
    return describe_ended(run, run.id, run.command, Ended(steps, gates, outcome, failure))


def _steps(run: RunState, outcome: RunOutcome, failed: tuple[str, ...]) -> Iterator[RunStep]:
    """Yield every step of the recipe: those that are done, those that were at work, those that were not reached."""
    at_work = {step.name for step in run.at_work}
    state: Outcome = "interrupted" if outcome in ("running", "interrupted") else "failed"
    reason = f"{' and '.join(failed)} failed" if state == "failed" and failed else "not reached"
    for step in run.recipe.steps:
        if step.name in run.done:
            yield run.done[step.name]
        elif step.name in at_work and (state == "interrupted" or step.name in failed):
            yield RunStep(name=step.name, step=step.type.name, outcome=state, reason=state, wall_s=0.0)
        else:
            yield skip_step(step, reason)

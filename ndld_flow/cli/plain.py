"""A run as plain lines, for logs and pipes."""

from __future__ import annotations

from ndld_flow.cli.wording import describe_end, describe_step_end
from ndld_flow.runner.events import Event, RunFinished, Said, StepFinished, StepStarted, StepWaits


def print_event(event: Event) -> None:
    """One line for what a reader of a log wants to know; progress within a step is left out."""
    if isinstance(event, Said):
        print(event.text, flush=True)
    elif isinstance(event, StepStarted):
        detail = f" ({event.detail})" if event.detail else ""
        print(f"{event.name}: {event.step} starts, {event.reason}{detail}", flush=True)
    elif isinstance(event, StepWaits):
        print(f"{event.name}: {event.waits_for}, waiting", flush=True)
    elif isinstance(event, StepFinished):
        print(describe_step_end(event), flush=True)
    elif isinstance(event, RunFinished):
        print("\n".join(describe_end(event)), flush=True)

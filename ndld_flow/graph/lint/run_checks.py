"""The selected checks, run within the time limit."""

from __future__ import annotations

import inspect
import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.graph.lint.check import Check, Subject, TimeLimitError
from ndld_flow.graph.lint.settings import BUILT_IN, ENTRY_POINTS, LintSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.plugins import find_plugins, load_plugin, plugin_origin
from ndld_flow.models.files import load_model, read_proto
from ndld_flow.records.inspection import UNDECIDED, Finding, Findings

_SEVERITIES = ("error", "warning", "info")
_MOST_OF_A_CHECK = 50
"""Maximum number of findings listed per check; a broken exporter repeats a mistake at every node."""


@cache
def all_checks() -> tuple[Check, ...]:
    """Return every check, in the order they run."""
    instances = [_named(name, pkgutil.resolve_name(found)) for name, found in BUILT_IN.items()]
    instances += (_load_check(point) for point in find_plugins(ENTRY_POINTS).values() if point.name not in BUILT_IN)
    return tuple(sorted(instances, key=lambda check: (check.order, check.name)))


def _named(name: str, cls: type[Check]) -> Check:
    check = cls()
    check.name = name
    return check


def _load_check(point: EntryPoint) -> Check:
    """Return the check of an installed package; its name is the entry point's."""
    cls = load_plugin(point)
    if not (inspect.isclass(cls) and issubclass(cls, Check)):
        raise RequestError(f"{plugin_origin(point)}: {point.value} is no subclass of Check.")
    return _named(point.name, cls)


def lint_file(
    path: Path,
    settings: LintSettings,
    inputs: Mapping[str, InputSpec],
    progress: Callable[[int, int, str], None],
) -> Findings:
    """Run the checks, on these inputs if the model runs; the result lists skipped and undecided checks with the reason.

    Raises `ModelError` if the file is not an ONNX model, `BackendError` if Polygraphy is required and not installed.
    """
    subject = _read(path, inputs, time.monotonic() + settings.time_limit / 1000)
    large = _total_bytes(subject) > settings.large_model
    findings: list[Finding] = []
    run: list[str] = []
    skipped: dict[str, str] = {}
    for position, check in enumerate(all_checks()):
        progress(position, len(all_checks()), check.name)
        reason = _reason_to_skip(check, settings, subject, large)
        if reason:
            skipped[check.name] = reason
            continue
        try:
            if time.monotonic() > subject.deadline:
                raise TimeLimitError
            findings += _shortened(list(check.find(subject)))
            run.append(check.name)
        except TimeLimitError:
            skipped[check.name] = f"{UNDECIDED}the time limit of {seconds(settings.time_limit / 1000)} was reached"
        except (ValueError, KeyError, OSError, MemoryError, RequestError, ModelError) as error:
            # A model can be too broken for this check: the others report how.
            skipped[check.name] = f"{UNDECIDED}{type(error).__name__}: {error}"
    findings.sort(key=lambda finding: _SEVERITIES.index(finding.severity))
    return Findings(findings=tuple(findings), checks_run=tuple(run), checks_skipped=skipped)


def _read(path: Path, inputs: Mapping[str, InputSpec], deadline: float) -> Subject:
    proto = read_proto(path)
    try:
        return Subject(path, proto, load_model(path), "", inputs, deadline)
    except ModelError as error:
        return Subject(path, proto, None, str(error).removeprefix(f"{path}: "), inputs, deadline)


def _total_bytes(subject: Subject) -> int:
    """Return the bytes of the model's file and, if it can be loaded, of its external data."""
    size = subject.path.stat().st_size
    if subject.model is None:
        return size
    tensors = (tensor for graph in subject.graphs() for tensor in graph.initializer)
    files = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return size + sum(int((subject.path.parent / file).stat().st_size) for file in files)


def _reason_to_skip(check: Check, settings: LintSettings, subject: Subject, large: bool) -> str:
    if check.name in settings.skip or (settings.checks and check.name not in settings.checks):
        return "not selected"
    if check.needs_model and subject.model is None:
        return "the model cannot be loaded"
    if check.costly and large and check.name not in settings.checks:
        return "the model is large: name the check in `checks` to run it anyway"
    return check.reason_to_skip(subject, settings, large)


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Return the first findings of a check, and one that counts the rest."""
    kept = list(findings[:_MOST_OF_A_CHECK])
    more = len(findings) - len(kept)
    if more > 0:
        last = findings[-1]
        kept.append(Finding(severity=last.severity, check=last.check, message=f"... and {more} more like these"))
    return kept

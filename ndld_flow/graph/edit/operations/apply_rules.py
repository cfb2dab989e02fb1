"""Apply rewrite rules: named ones, or those of a Python file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.library_rules import LIBRARY_RULES
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.selection import Patterns
from ndld_flow.step import DataFile, RunsCode

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


class ApplyRules(Operation):
    __doc__ = f"""Apply rewrite rules: onnxscript's own by name, or those of a Python file.

    apply_rules: {{rules: ["successive_*", fuse_batchnorm_into_conv], omit: [successive_clip]}}

    At each node the first that fits is applied, in the order below, and all again until none fits any more. A file has
    `rules`, which is onnxscript's `RewriteRuleSet` or a list of `RewriteRule`; it is Python and runs only when the
    recipe is trusted. Rules that read weights, such as those that fuse BatchNormalization, load these weights.

    The named ones:

    {"".join(f"- `{name}`: {what}{chr(10)}    " for name, what in LIBRARY_RULES.items())}"""

    about = "rules and code"
    keeps_outputs = True

    libraries: ClassVar[tuple[str, ...]] = ("onnxscript",)

    rules: Patterns = ()
    """Which of the named rules."""
    omit: Patterns = ()
    """Which of them not."""
    file: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file with `rules`, which are applied after the named ones."""
    allow_empty: bool = False
    """Let it pass when no rule fits anywhere."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.rules and self.file is None:
            raise ValueError("say which `rules`, or a `file` that has some")
        for pattern in (*self.rules, *self.omit):
            if not any(map(name_matcher(pattern), LIBRARY_RULES)):
                raise ValueError(f"there is no rule {pattern!r}; {suggest(pattern, LIBRARY_RULES)}")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.rule_sets import apply_rules, library_rules, rules_in_file

        done = apply_rules(edited, library_rules(self._chosen()))
        if self.file is not None:
            done += apply_rules(edited, rules_in_file(self.file), self.file)
        if not done and not self.allow_empty:
            raise RequestError("none of these rules fits anywhere in this model")
        return ", ".join(f"{name} {count} times" for name, count in done.items()) or "no rule fits"

    def _chosen(self) -> list[str]:
        def fits(name: str, patterns: tuple[str, ...]) -> bool:
            return any(name_matcher(pattern)(name) for pattern in patterns)

        return [name for name in LIBRARY_RULES if fits(name, self.rules) and not fits(name, self.omit)]

"""Apply rewrite rules of onnxscript or of a Python file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import Patterns
from ndld_flow.step import DataFile, RunsCode

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


LIBRARY_RULES = {
    "add_0": "Add(x, 0) -> x",
    "affine_conv_fusion": "Conv(x * a + b) -> Conv(x), for numbers a and b and a Conv without padding",
    "cast_cast": "Cast(Cast(x)) -> Cast(x), where the first Cast is lossless",
    "cast_constant_of_shape": "Cast(ConstantOfShape(s)) -> ConstantOfShape(s) of the new type",
    "cast_constant_of_shape_without_value": "the same for a ConstantOfShape without a value",
    "collapse_slice": "Slice of everything -> Identity, by its starts and ends",
    "collapse_slice2": "Slice of everything -> Identity, by the shapes",
    "conv_affine_fusion": "Conv(x) * a + b -> Conv(x), for numbers a and b",
    "div_by_1": "Div(x, 1) -> x",
    "dropout_inference": "Dropout in inference -> Identity",
    "dropout_zero": "Dropout of ratio 0 -> Identity",
    "expand_before_binary_op": "Add(Expand(x), y) -> Add(x, y) and similar, if broadcasting does the same",
    "flatten_to_reshape": "Flatten(x) -> Reshape(x)",
    "fuse_batchnorm_into_conv": "BatchNormalization(Conv(x)) -> Conv(x)",
    "fuse_batchnorm_into_conv_transpose": "BatchNormalization(ConvTranspose(x)) -> ConvTranspose(x)",
    "fuse_batchnorm_into_gemm": "BatchNormalization(Gemm(x)) -> Gemm(x)",
    "fuse_hardswish": "x * Clip(x + 3, 0, 6) / 6 -> HardSwish(x), and the same for HardSigmoid",
    "fuse_pad_into_conv": "Conv(Pad(x)) -> Conv(x) with pads",
    "fuse_pad_into_conv_integer": "ConvInteger(Pad(x)) -> ConvInteger(x) with pads",
    "gemm_to_matmul_add": "Gemm(a, b, c) -> MatMul(a, b) + c",
    "materialize_reshape_shape": "the computed shape of a Reshape -> a constant, where the result's shape is known",
    "matmul_add_to_gemm": "MatMul(a, b) + c -> Gemm(a, b, c), for matrices",
    "max_max": "Max(Max(x, a), b) -> Max(x, max(a, b))",
    "max_min": "Max(Min(x, a), b) -> Clip(x, b, a)",
    "min_max": "Min(Max(x, a), b) -> Clip(x, a, b)",
    "min_min": "Min(Min(x, a), b) -> Min(x, min(a, b))",
    "mul_by_1": "Mul(x, 1) -> x",
    "no_op_cast": "Cast to the same type -> Identity",
    "no_op_dynamic_scatter_nd": "ScatterND that overwrites everything, by a computed range -> its updates",
    "no_op_expand": "Expand to the same shape -> Identity",
    "no_op_static_scatter_nd": "ScatterND that overwrites everything, by constant indices -> its updates",
    "no_op_transpose": "Transpose to the same order -> Identity",
    "normalize_pad_format_conv": "auto_pad of Conv -> pads",
    "normalize_pad_format_conv_integer": "auto_pad of ConvInteger -> pads",
    "one_reshape_matmul_reshape": "Reshape(MatMul(Reshape(a), b)) -> MatMul(a, b), if broadcasting does the same",
    "remove_optional_bias_from_conv": "Conv with a bias of zeros -> Conv without",
    "remove_optional_bias_from_conv_transpose": "ConvTranspose with a bias of zeros -> ConvTranspose without",
    "remove_optional_bias_from_gemm": "Gemm with a C of zeros -> Gemm without",
    "remove_optional_bias_from_qlinear_conv": "QLinearConv with a bias of zeros -> QLinearConv without",
    "reshape_reshape": "Reshape(Reshape(x)) -> Reshape(x)",
    "slice_split": "two Slices that partition a tensor -> Split",
    "squeeze_reshape_1d": "Reshape(Squeeze(x), [-1]) of one dimension -> Identity",
    "sub_0": "Sub(x, 0) -> x",
    "successive_clip": "Clip(Clip(x)) -> Clip(x)",
    "successive_clip_relu": "Relu(Clip(x)) -> Clip(x)",
    "successive_relu": "Relu(Relu(x)) -> Relu(x)",
    "successive_relu_clip": "Clip(Relu(x)) -> Clip(x)",
    "transpose_a_matmul_add_to_gemm": "MatMul(Transpose(a), b) + c -> Gemm(a, b, c)",
    "transpose_ab_matmul_add_to_gemm": "MatMul(Transpose(a), Transpose(b)) + c -> Gemm(a, b, c)",
    "transpose_b_matmul_add_to_gemm": "MatMul(a, Transpose(b)) + c -> Gemm(a, b, c)",
    "transpose_transpose": "Transpose(Transpose(x)) -> Transpose(x), or Identity",
    "two_reshapes_matmul_reshape": "Reshape(MatMul(Reshape(a), Reshape(b))) -> MatMul(a, b), in the same cases",
    "unsqueeze_unsqueeze": "Unsqueeze(Unsqueeze(x)) -> Unsqueeze(x)",
}
"""Rule -> its effect. In onnxscript's `rewriter.rules.common` the names end with `_rule` or `_rules`."""


class ApplyRules(Operation):
    __doc__ = f"""Apply rewrite rules: onnxscript's own by name, or those of a Python file.

    apply_rules: {{rules: ["successive_*", fuse_batchnorm_into_conv], omit: [successive_clip]}}

    At each node the first rule that matches is applied, in the order below, and the passes repeat until none matches.
    A file defines `rules`, an onnxscript `RewriteRuleSet` or a list of `RewriteRule`; it is Python code and runs only
    when the recipe is trusted. Rules that read weights, such as those that fuse BatchNormalization, load these weights.
    The rules of onnxscript:

    {"".join(f"- `{name}`: {effect}{chr(10)}    " for name, effect in LIBRARY_RULES.items())}"""

    heading = "rules and code"
    keeps_outputs = True
    libraries: ClassVar[tuple[str, ...]] = ("onnxscript",)

    rules: Patterns = ()
    """Rules to apply, by name."""
    omit: Patterns = ()
    """Rules to leave out."""
    file: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file with `rules`, which are applied after the others."""
    allow_empty: bool = False
    """Succeed when no rule matches."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.rules and self.file is None:
            raise ValueError("give `rules`, or a `file` that defines some")
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
            raise RequestError("none of these rules matches anywhere in this model")
        return ", ".join(f"{name} {count} times" for name, count in done.items()) or "no rule matches"

    def _chosen(self) -> list[str]:
        def fits(name: str, patterns: tuple[str, ...]) -> bool:
            return any(name_matcher(pattern)(name) for pattern in patterns)

        return [name for name in LIBRARY_RULES if fits(name, self.rules) and not fits(name, self.omit)]

"""Activations of a model on given inputs: statistics, histograms, channels and maps."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.accuracy import LayerDivergence, TensorRange
from ndld_flow.records.document import Count, Document, Record


class Histogram(Record):
    """Counts of finite values in bins of equal width. Both models' histograms of a tensor have the same edges."""

    low: float
    high: float
    counts: tuple[Count, ...]


class ChannelStatistics(Record):
    """One channel (the second dimension of NCHW) of a tensor, first sample, all items of its batch.

    Minimum, maximum, mean and rms are of the finite values, 0 if there are none.
    """

    channel: int
    minimum: float
    maximum: float
    mean: float
    rms: float
    nonfinite: Count = 0
    saturated: Count = 0
    """Elements at the largest or smallest value of their dtype, or of the activation's bounds (Clip, Sigmoid)."""
    difference_rms: float | None = None
    """Root mean square of candidate minus reference, where both are finite; None without a reference."""


class ActivationMap(Record):
    """The values of one tensor for one sample (the first item of its batch), reduced to a viewable size.

    `file` holds, row by row, channels x height x width unsigned 16-bit little-endian codes: 65535 NaN, 65534 +inf,
    65533 -inf, else value = low + code * (high - low) / 65532.

    Both sides of a tensor and sample have the same `low`, `high`, sizes and channels, and each position in both maps is
    the same element of the tensor: candidate minus reference is the difference of their codes times (high - low) /
    65532.
    """

    sample: int
    side: str
    """`candidate` or `reference`."""
    file: str
    """File next to the document, such as `maps/0003-0-candidate.u16`."""
    array_file: str = ""
    """All values at full precision, `.npy`; empty if they were not requested."""
    channels: int
    height: int
    width: int
    total_channels: int
    """Channels of the tensor; more than `channels` if not all are shown."""
    channel_numbers: tuple[int, ...] = ()
    """The tensor's channels in the map, ascending; empty if it has all."""
    full_height: int = 0
    """Height of the tensor; the last row and column of a map may represent fewer elements."""
    full_width: int = 0
    scale: int = 1
    """Each element of the map represents `scale x scale` elements of the tensor: the one with the largest magnitude on
    either side; NaN and infinity take precedence."""
    low: float
    """Smallest finite value of the maps of both sides; 0 if nothing is finite."""
    high: float


class CapturedTensor(Record):
    """One tensor inside the model."""

    tensor: str
    node: str
    """Empty for an input of the model, whose `op_type` is `Input`."""
    op_type: str
    position: int
    """Position of the node in the order of execution, from 0; -1 for an input."""
    dtype: str
    """Element type in the model; `stored` arithmetic rounds to it."""
    reference_dtype: str = ""
    shape: tuple[int, ...]
    """Shape of the first sample."""
    layout: str
    """Interpretation of the dimensions: `NCHW`, `NHWC`, `NCL`, `NLC`, `NCDHW`, `NC`, `flat`. Maps of `NC`, `NLC`, `NCL`
    are one image of their last two dimensions, and of `flat` one row."""
    range: TensorRange
    reference_range: TensorRange | None = None
    histogram: Histogram
    reference_histogram: Histogram | None = None
    saturated: Count = 0
    """Elements, over all samples, at the largest or smallest value of their dtype or of the activation's bounds."""
    reference_saturated: Count = 0
    channel_count: Count = 0
    """Channels of the tensor; 0 if the layout has none."""
    channels: tuple[ChannelStatistics, ...] = ()
    """Ascending; if the tensor has more, those that `channels_by` ranks first."""
    channels_by: str = ""
    """Criterion for the channels if not all are recorded: `difference` (root mean square of candidate minus reference,
    first sample) or `energy` (mean square), largest first."""
    maps: tuple[ActivationMap, ...] = ()


class SampleShown(Record):
    """One input on which the model ran."""

    label: str
    """`receipt.png`, `clip.mp4 frame 12`, `random, seed 3`."""
    inputs: dict[str, str]
    """Input -> origin of its values."""
    picture: str = ""
    """A PNG of it next to the document, such as `samples/0.png`; empty if it is not an image."""


class Activations(Document):
    """Activations that `inspect_activations` captured, with the files of their maps."""

    document: Literal["activations"] = "activations"
    format_version: int = 1
    file_name = "activations.json"
    model: str
    reference: str = ""
    """The other model, if two are compared."""
    provider: str
    arithmetic: str = "native"
    """`stored` if fp16 and bf16 tensors were rounded after every node."""
    range_format: str = "fp16"
    """The format with which ranges are compared: their shares beyond, subnormal and vanishing refer to it."""
    noise: str = ""
    """Noise added to the inputs, and to which model's: `normal, deviation 0.02, seed 0, candidate only`."""
    stopped_at: str = ""
    """The tensor or node after which the run stopped."""
    samples: tuple[SampleShown, ...]
    tensors: tuple[CapturedTensor, ...]
    divergence: tuple[LayerDivergence, ...] = ()
    """Divergence of the captured tensors that both models have."""
    first_nonfinite: str = ""
    """The first captured tensor, in order of execution, that contains NaN or infinity."""
    notes: tuple[str, ...] = ()

"""Names for what TensorRT's bindings hand out, which has no types."""

from __future__ import annotations

from typing import Any

Bindings = Any
"""The module `tensorrt` or `tensorrt_rtx`."""
Bound = Any
"""An object of such a module: an IBuilderConfig, an ILayer, ..."""

"""Samples, known by their values."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from ndld_flow.samples.sample_feeds import Samples


def digest_samples(samples: Samples) -> str:
    """blake3 of every input of every sample: name, dtype, shape and bytes."""
    hasher = blake3()
    for sample in samples:
        for name, feed in sorted(sample.feeds.items()):
            values = np.ascontiguousarray(feed.values)
            hasher.update(f"{name} {values.dtype} {values.shape}\n".encode())
            hasher.update(values.tobytes())
    return hasher.hexdigest()

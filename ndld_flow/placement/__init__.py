"""The choice of the layers to quantize by their latency on a target and their accuracy on samples."""

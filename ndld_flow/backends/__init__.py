"""The only importers of onnx, onnxruntime, tensorrt and polygraphy, each imported when used.

Since 1.29, ONNX Runtime's builds report every session (the model's file name, hashes, timings) to its maker by default
(its Privacy.md). Models belong to people who did not agree to that, and an uploader disturbs what is measured: it is
switched off before anything is imported, unless the environment says something else.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

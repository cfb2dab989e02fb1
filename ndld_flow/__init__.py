"""ndld_flow: declarative pipelines that make ONNX models fast and keep them correct.

Since 1.29, builds of ONNX Runtime report every session (the model's file name, hashes, timings) to Microsoft by default
(its Privacy.md). The owners of models did not agree to that, and an uploader disturbs measurements. The package
therefore disables it before anything imports ONNX Runtime, unless the environment sets the variable.
"""

import os

__version__ = "0.1.0"

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

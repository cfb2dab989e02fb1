"""Stands for the Python bindings of one release of TensorRT, in tests. Nothing is computed.

`release.json` beside this file says which release. The environment says the rest:

- `STANDIN_RECORD`: a file that every call and every setting is appended to, as lines of JSON
- `STANDIN_NO_GPU=1`: engines cannot be opened
- `STANDIN_NO_DRIVER=1`: TensorRT's builder cannot be made, as on a machine without CUDA
- `STANDIN_GPU`: compute capability of the GPU, 8.9 unless said otherwise
- `STANDIN_STEP_S`: seconds that each step of a build takes longer
- `STANDIN_CHURN`: a file that counts builds, which then do not all come to the same tactics
"""

from .assembly import assemble

globals().update(assemble())
del assemble

"""Stands for the Python bindings of one release of TensorRT, in tests. Nothing is computed.

`release.json` beside this file says which release. In the environment: STANDIN_RECORD names a file that every call and
every setting is appended to; STANDIN_NO_GPU=1 keeps engines from being opened; STANDIN_NO_DRIVER=1 keeps TensorRT's
builder from being made.
"""

from .assembly import assemble

globals().update(assemble())
del assemble

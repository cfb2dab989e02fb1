"""Changes that people ask for by name: layouts, Gemm, decomposing, fusing, a free batch."""

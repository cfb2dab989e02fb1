#pragma once

#include <filesystem>

#include "model_runner/tensor.h"

namespace model_runner {

// Files of numpy: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
// bfloat16, which numpy does not have, is stored as "<V2", as ml_dtypes and np.save do.

// Reads a file whose elements have this type. Throws std::runtime_error for another type, another
// byte order, Fortran order, or a damaged file.
Tensor ReadNpy(const std::filesystem::path& path, Dtype dtype);
void WriteNpy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace model_runner

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model_runner/image.h"
#include "model_runner/tensor.h"

namespace model_runner {

// A dimension: its size, or -1 for a dynamic one, which may have a name.
struct Dimension {
  std::int64_t size = -1;
  std::string name;
};

// An input or an output as the model declares it.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  // Empty if the model declares no shape; a scalar has `has_shape` and no dimensions.
  std::vector<Dimension> dimensions;
  bool has_shape = true;

  // "batchx3x?x?".
  std::string ShapeText() const;
  bool Accepts(const Shape& shape) const;
};

struct InputInfo {
  TensorInfo tensor;
  // The first values of the recipe: a .npy file in the project's folder.
  std::string sample;
  // The conversion of images; none if the recipe has no image settings for this input.
  std::optional<ImageSettings> image;
  // The range of random values.
  double low = 0.0;
  double high = 1.0;
};

struct Description {
  // Relative to the project's folder.
  std::string model;
  std::vector<std::string> operator_libraries;
  std::vector<InputInfo> inputs;
  std::vector<TensorInfo> outputs;
};

// Returns the description of this project's model: src/model_description.cpp is generated.
const Description& DescribeModel();

// A name without control characters, for messages.
std::string Visible(const std::string& name);

}  // namespace model_runner

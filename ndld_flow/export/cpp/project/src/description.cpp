#include "model_runner/description.h"

#include <array>
#include <cstdio>

namespace model_runner {

std::string TensorInfo::ShapeText() const {
  if (!has_shape) {
    return "any shape";
  }
  std::string text;
  for (const Dimension& dimension : dimensions) {
    const std::string dynamic = dimension.name.empty() ? "?" : Visible(dimension.name);
    text +=
        (text.empty() ? "" : "x") + (dimension.size < 0 ? dynamic : std::to_string(dimension.size));
  }
  return text.empty() ? "scalar" : text;
}

bool TensorInfo::Accepts(const Shape& shape) const {
  if (!has_shape) {
    return true;
  }
  if (shape.size() != dimensions.size()) {
    return false;
  }
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (dimensions[axis].size >= 0 && dimensions[axis].size != shape[axis]) {
      return false;
    }
  }
  return true;
}

std::string Visible(const std::string& name) {
  std::string text;
  for (const char letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x20 && code != 0x7F) {
      text += letter;
      continue;
    }
    std::array<char, 5> escaped{};
    std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned>(code));
    text += escaped.data();
  }
  return text;
}

}  // namespace model_runner

#include "model_runner/tensor.h"

#include <cstring>
#include <limits>
#include <utility>

namespace model_runner {
namespace {

struct Traits {
  const char* name;
  std::size_t size;
};

Traits TraitsOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return {"bool", 1};
    case Dtype::kInt8:
      return {"int8", 1};
    case Dtype::kInt16:
      return {"int16", 2};
    case Dtype::kInt32:
      return {"int32", 4};
    case Dtype::kInt64:
      return {"int64", 8};
    case Dtype::kUint8:
      return {"uint8", 1};
    case Dtype::kUint16:
      return {"uint16", 2};
    case Dtype::kUint32:
      return {"uint32", 4};
    case Dtype::kUint64:
      return {"uint64", 8};
    case Dtype::kFloat16:
      return {"float16", 2};
    case Dtype::kBfloat16:
      return {"bfloat16", 2};
    case Dtype::kFloat32:
      return {"float32", 4};
    case Dtype::kFloat64:
      return {"float64", 8};
  }
  throw std::invalid_argument("unknown element type");
}

std::uint32_t BitsOf(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Drops the lowest `dropped` bits, rounded to the nearest value and to even in ties.
std::uint32_t RoundedShift(std::uint32_t value, unsigned dropped) {
  const std::uint32_t half = 1U << (dropped - 1);
  const std::uint32_t rest = value & ((1U << dropped) - 1);
  const std::uint32_t kept = value >> dropped;
  return kept + (rest > half || (rest == half && (kept & 1U) != 0) ? 1 : 0);
}

}  // namespace

std::size_t SizeOf(Dtype dtype) { return TraitsOf(dtype).size; }

const char* NameOf(Dtype dtype) { return TraitsOf(dtype).name; }

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32 ||
         dtype == Dtype::kFloat64;
}

Float16 Float16::From(float value) {
  const std::uint32_t bits = BitsOf(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t result = 0;
  if (magnitude > 0x7F800000U) {
    result = 0x7C00U | ((magnitude >> 13) & 0x3FFU);  // NaN
    result |= (result & 0x3FFU) == 0 ? 1U : 0U;
  } else if (magnitude >= 0x47800000U) {
    result = 0x7C00U;  // 65536 and more, and infinity
  } else if (magnitude >= 0x38800000U) {
    result = RoundedShift(magnitude - 0x38000000U, 13);  // a carry makes the next exponent
  } else if (magnitude >= 0x33000000U) {
    // A subnormal half: the significand with its leading 1, in units of 2^-24.
    const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
    result = RoundedShift(significand, 126 - (magnitude >> 23));
  }
  return {static_cast<std::uint16_t>(sign | result)};
}

Bfloat16 Bfloat16::From(float value) {
  const std::uint32_t bits = BitsOf(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};  // a quiet NaN
  }
  return {static_cast<std::uint16_t>(RoundedShift(bits, 16))};
}

std::size_t CountOf(const Shape& shape) {
  std::size_t count = 1;
  const std::size_t most = std::numeric_limits<std::size_t>::max() / 16;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw std::invalid_argument("shape " + TextOf(shape) + " has a negative size");
    }
    const auto positive = static_cast<std::size_t>(size);
    if (positive != 0 && count > most / positive) {
      throw std::invalid_argument("shape " + TextOf(shape) + " has too many elements");
    }
    count *= positive;
  }
  return count;
}

std::string TextOf(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape) {
    text += (text.empty() ? "" : "x") + (size < 0 ? std::string("?") : std::to_string(size));
  }
  return text.empty() ? "scalar" : text;
}

Tensor::Tensor(Dtype dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(CountOf(shape_) * SizeOf(dtype)) {}

void Tensor::Check(Dtype requested) const {
  if (requested != dtype_) {
    throw std::invalid_argument(std::string("the tensor holds ") + NameOf(dtype_) + ", not " +
                                NameOf(requested));
  }
}

}  // namespace model_runner

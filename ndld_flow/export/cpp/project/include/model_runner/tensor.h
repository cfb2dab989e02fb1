#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace model_runner {

// Element types of the model's inputs and outputs.
enum class Dtype {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};

std::size_t SizeOf(Dtype dtype);
// The name in numpy, such as "float32".
const char* NameOf(Dtype dtype);
bool IsFloat(Dtype dtype);

// 16-bit floats as their bits. Both conversions round to the nearest value, and to even in ties.
struct Float16 {
  std::uint16_t bits;
  static Float16 From(float value);
};
struct Bfloat16 {
  std::uint16_t bits;
  static Bfloat16 From(float value);
};

template <typename T>
struct DtypeOf;
template <>
struct DtypeOf<bool> {
  static constexpr Dtype kValue = Dtype::kBool;
};
template <>
struct DtypeOf<std::int8_t> {
  static constexpr Dtype kValue = Dtype::kInt8;
};
template <>
struct DtypeOf<std::int16_t> {
  static constexpr Dtype kValue = Dtype::kInt16;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype kValue = Dtype::kInt32;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype kValue = Dtype::kInt64;
};
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr Dtype kValue = Dtype::kUint8;
};
template <>
struct DtypeOf<std::uint16_t> {
  static constexpr Dtype kValue = Dtype::kUint16;
};
template <>
struct DtypeOf<std::uint32_t> {
  static constexpr Dtype kValue = Dtype::kUint32;
};
template <>
struct DtypeOf<std::uint64_t> {
  static constexpr Dtype kValue = Dtype::kUint64;
};
template <>
struct DtypeOf<Float16> {
  static constexpr Dtype kValue = Dtype::kFloat16;
};
template <>
struct DtypeOf<Bfloat16> {
  static constexpr Dtype kValue = Dtype::kBfloat16;
};
template <>
struct DtypeOf<float> {
  static constexpr Dtype kValue = Dtype::kFloat32;
};
template <>
struct DtypeOf<double> {
  static constexpr Dtype kValue = Dtype::kFloat64;
};

using Shape = std::vector<std::int64_t>;

// The number of elements. Throws std::invalid_argument for a negative size or too many elements.
std::size_t CountOf(const Shape& shape);
// "1x3x224x224", or "scalar".
std::string TextOf(const Shape& shape);

// A dense tensor in the memory of the host, in C order. It owns its elements.
class Tensor {
 public:
  Tensor(Dtype dtype, Shape shape);

  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t count() const { return CountOf(shape_); }
  std::size_t size_in_bytes() const { return count() * SizeOf(dtype_); }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }

  // The elements. Throws std::invalid_argument if the tensor has another element type.
  template <typename T>
  T* values() {
    Check(DtypeOf<T>::kValue);
    return static_cast<T*>(data());
  }
  template <typename T>
  const T* values() const {
    Check(DtypeOf<T>::kValue);
    return static_cast<const T*>(data());
  }

 private:
  void Check(Dtype requested) const;

  Dtype dtype_;
  Shape shape_;
  std::vector<unsigned char> bytes_;
};

}  // namespace model_runner

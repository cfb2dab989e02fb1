#include "model_runner/npy.h"

#include <array>
#include <cctype>
#include <charconv>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace model_runner {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

std::string DescriptionOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return "|b1";
    case Dtype::kInt8:
      return "|i1";
    case Dtype::kInt16:
      return "<i2";
    case Dtype::kInt32:
      return "<i4";
    case Dtype::kInt64:
      return "<i8";
    case Dtype::kUint8:
      return "|u1";
    case Dtype::kUint16:
      return "<u2";
    case Dtype::kUint32:
      return "<u4";
    case Dtype::kUint64:
      return "<u8";
    case Dtype::kFloat16:
      return "<f2";
    case Dtype::kBfloat16:
      return "<V2";
    case Dtype::kFloat32:
      return "<f4";
    case Dtype::kFloat64:
      return "<f8";
  }
  throw std::invalid_argument("unknown element type");
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path), file_(path, std::ios::binary), size_(0) {
    if (!file_) {
      Fail("it cannot be opened");
    }
    std::error_code error;
    size_ = std::filesystem::file_size(path, error);
    if (error) {
      Fail("it is not a regular file");
    }
  }

  // The dictionary of the header.
  std::string ReadHeader() {
    std::array<unsigned char, 8> start{};
    ReadBytes(start.data(), start.size());
    const std::string_view magic(reinterpret_cast<const char*>(start.data()), kMagic.size());
    if (magic != kMagic || start[6] < 1 || start[6] > 3) {
      Fail("it is not a .npy file");
    }
    std::array<unsigned char, 4> length{};
    const std::size_t width = start[6] == 1 ? 2 : 4;
    ReadBytes(length.data(), width);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < width; ++i) {
      bytes |= static_cast<std::size_t>(length[i]) << (8 * i);
    }
    if (bytes > size_) {
      Fail("it is truncated");
    }
    std::string header(bytes, '\0');
    ReadBytes(header.data(), bytes);
    return header;
  }

  void ReadBytes(void* target, std::size_t size) {
    file_.read(static_cast<char*>(target), static_cast<std::streamsize>(size));
    if (static_cast<std::size_t>(file_.gcount()) != size) {
      Fail("it is truncated");
    }
  }

  std::uintmax_t Left() { return size_ - static_cast<std::uintmax_t>(file_.tellg()); }

  [[noreturn]] void Fail(const std::string& reason) const {
    throw std::runtime_error(path_.string() + ": " + reason);
  }

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  std::uintmax_t size_;
};

// The text after `'key':` in the header, which numpy writes as a literal of a Python dictionary.
std::string_view ValueOf(std::string_view header, std::string_view key, const Reader& reader) {
  const std::string quoted = "'" + std::string(key) + "':";
  std::size_t place = header.find(quoted);
  if (place == std::string_view::npos) {
    reader.Fail("its header has no " + std::string(key));
  }
  place += quoted.size();
  while (place < header.size() && header[place] == ' ') {
    ++place;
  }
  return header.substr(place);
}

Shape ParseShape(std::string_view text, const Reader& reader) {
  Shape shape;
  const std::size_t end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) {
    reader.Fail("its header has no shape");
  }
  const char* place = text.data() + 1;
  const char* last = text.data() + end;
  while (place < last) {
    if (*place == ' ' || *place == ',') {
      ++place;
      continue;
    }
    std::int64_t size = 0;
    const auto parsed = std::from_chars(place, last, size);
    if (parsed.ec != std::errc() || size < 0) {
      reader.Fail("its header has no shape");
    }
    shape.push_back(size);
    place = parsed.ptr;
  }
  return shape;
}

}  // namespace

Tensor ReadNpy(const std::filesystem::path& path, Dtype dtype) {
  Reader reader(path);
  const std::string header = reader.ReadHeader();
  const std::string_view description = ValueOf(header, "descr", reader);
  const std::string expected = DescriptionOf(dtype);
  const std::string_view found = description.substr(1, description.find('\'', 1) - 1);
  // "|V2" is what older versions of numpy write.
  if (found != expected && !(dtype == Dtype::kBfloat16 && found == "|V2")) {
    reader.Fail("its elements are " + std::string(found) + ", not " + expected + " (" +
                NameOf(dtype) + ")");
  }
  if (ValueOf(header, "fortran_order", reader).substr(0, 5) != "False") {
    reader.Fail("it is in Fortran order: save np.ascontiguousarray(array)");
  }
  Shape shape = ParseShape(ValueOf(header, "shape", reader), reader);
  if (CountOf(shape) * SizeOf(dtype) > reader.Left()) {
    reader.Fail("it is truncated");
  }
  Tensor tensor(dtype, shape);
  reader.ReadBytes(tensor.data(), tensor.size_in_bytes());
  return tensor;
}

void WriteNpy(const std::filesystem::path& path, const Tensor& tensor) {
  std::string shape;
  for (const std::int64_t size : tensor.shape()) {
    shape += std::to_string(size) + (tensor.shape().size() == 1 ? "," : ", ");
  }
  if (tensor.shape().size() > 1) {
    shape.resize(shape.size() - 2);
  }
  std::string header = "{'descr': '" + DescriptionOf(tensor.dtype()) +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  // Magic, version and length take 10 bytes; the elements start at a multiple of 64.
  header.append(63 - (header.size() + 10) % 64, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << kMagic << '\x01' << '\x00' << static_cast<char>(header.size() & 0xFF)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(static_cast<const char*>(tensor.data()),
             static_cast<std::streamsize>(tensor.size_in_bytes()));
  file.close();
  if (!file) {
    throw std::runtime_error(path.string() + ": it cannot be written");
  }
}

}  // namespace model_runner

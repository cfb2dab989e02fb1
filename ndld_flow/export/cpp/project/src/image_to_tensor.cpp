#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model_runner/image.h"

namespace model_runner {
namespace {

constexpr double kMostPixels = 89478485.0;  // Pillow's limit

// The place of an image in an input: it is resized to `size`, the part from `cut` on is used, and
// the rest of the input is padding. The first of two numbers is for x, the second for y.
struct Placement {
  std::array<int, 2> size{};
  std::array<int, 2> cut{};
  std::array<int, 2> offset{};
  std::array<int, 2> input{};
};

// To even in ties, as Python does.
int Rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

int Or(int size, int other) { return size != 0 ? size : other; }

Placement PlaceOf(const Image& image, const ImageSettings& settings) {
  const std::array<int, 2> own = {image.width, image.height};
  const std::array<int, 2> target = {settings.width, settings.height};
  std::vector<double> factors;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    if (target[axis] != 0) {
      factors.push_back(static_cast<double>(target[axis]) / own[axis]);
    }
  }
  Placement place;
  if (settings.resize == Resize::kStretch || factors.empty()) {
    place.input = {Or(target[0], own[0]), Or(target[1], own[1])};
    place.size = place.input;
    return place;
  }
  const bool is_letterbox = settings.resize == Resize::kLetterbox;
  const double factor =
      is_letterbox ? *std::min_element(factors.begin(), factors.end())
                   : *std::max_element(factors.begin(), factors.end()) / settings.crop_share;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    if (is_letterbox) {
      place.size[axis] = std::max(1, Rounded(own[axis] * factor));
      place.input[axis] = Or(target[axis], place.size[axis]);
      const int room = place.input[axis] - place.size[axis];
      place.offset[axis] = settings.is_centered ? room / 2 : 0;
    } else {
      place.size[axis] = std::max(static_cast<int>(own[axis] * factor + 1e-6), Or(target[axis], 1));
      place.input[axis] = Or(target[axis], place.size[axis]);
      const int rest = place.size[axis] - place.input[axis];
      place.cut[axis] = settings.is_centered ? Rounded(rest / 2.0) : 0;
    }
  }
  return place;
}

// The channel of the image that becomes a channel of the input.
int SourceOf(int channel, const Image& image, const ImageSettings& settings) {
  if (image.channels == 1) {
    return 0;
  }
  return settings.color == Color::kBgr ? 2 - channel : channel;
}

template <typename T>
T ForChannel(const std::vector<T>& values, int channel) {
  return values.size() == 1 ? values[0] : values.at(static_cast<std::size_t>(channel));
}

float Normalized(int pixel, int channel, const ImageSettings& settings) {
  const auto exact = static_cast<float>(pixel);
  const float scaled = settings.scale ? exact * *settings.scale : exact / 255.0F;
  return (scaled - ForChannel(settings.mean, channel)) / ForChannel(settings.std, channel);
}

void Store(Tensor& tensor, std::size_t place, int pixel, float value) {
  switch (tensor.dtype()) {
    case Dtype::kFloat32:
      tensor.values<float>()[place] = value;
      return;
    case Dtype::kFloat64:
      tensor.values<double>()[place] = static_cast<double>(value);
      return;
    case Dtype::kFloat16:
      tensor.values<Float16>()[place] = Float16::From(value);
      return;
    case Dtype::kBfloat16:
      tensor.values<Bfloat16>()[place] = Bfloat16::From(value);
      return;
    case Dtype::kUint8:
      tensor.values<std::uint8_t>()[place] = static_cast<std::uint8_t>(pixel);
      return;
    case Dtype::kInt16:
      tensor.values<std::int16_t>()[place] = static_cast<std::int16_t>(pixel);
      return;
    case Dtype::kUint16:
      tensor.values<std::uint16_t>()[place] = static_cast<std::uint16_t>(pixel);
      return;
    case Dtype::kInt32:
      tensor.values<std::int32_t>()[place] = pixel;
      return;
    case Dtype::kUint32:
      tensor.values<std::uint32_t>()[place] = static_cast<std::uint32_t>(pixel);
      return;
    case Dtype::kInt64:
      tensor.values<std::int64_t>()[place] = pixel;
      return;
    case Dtype::kUint64:
      tensor.values<std::uint64_t>()[place] = static_cast<std::uint64_t>(pixel);
      return;
    case Dtype::kBool:
    case Dtype::kInt8:
      break;
  }
  throw std::invalid_argument(std::string("an image cannot become ") + NameOf(tensor.dtype()));
}

}  // namespace

int ChannelsToRead(const ImageSettings& settings) {
  return settings.channels == 1 || settings.color == Color::kGray ? 1 : 3;
}

Tensor ToTensor(const Image& image, const ImageSettings& settings, Dtype dtype) {
  const Placement place = PlaceOf(image, settings);
  if (static_cast<double>(place.input[0]) * place.input[1] > kMostPixels) {
    throw std::runtime_error("the image would be enlarged to " + std::to_string(place.input[0]) +
                             "x" + std::to_string(place.input[1]) + ", more than Python accepts");
  }
  const std::array<int, 2> used = {std::min(place.size[0], place.input[0]),
                                   std::min(place.size[1], place.input[1])};
  const Image fitted = ResizeImage(image, place.size[0], place.size[1], settings, place.cut[0],
                                   place.cut[1], used[0], used[1]);
  const int width = place.input[0];
  const int height = place.input[1];
  Shape shape = settings.channels_last ? Shape{height, width, settings.channels}
                                       : Shape{settings.channels, height, width};
  if (settings.batch != 0) {
    shape.insert(shape.begin(), settings.batch);
  }
  Tensor tensor(dtype, shape);
  const auto at = [](int number) { return static_cast<std::size_t>(number); };
  for (int channel = 0; channel < settings.channels; ++channel) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const int image_x = x - place.offset[0];
        const int image_y = y - place.offset[1];
        int pixel = ForChannel(settings.pad, channel);
        if (image_x >= 0 && image_x < used[0] && image_y >= 0 && image_y < used[1]) {
          const std::size_t first = (at(image_y) * at(used[0]) + at(image_x)) * at(image.channels);
          pixel = fitted.pixels[first + at(SourceOf(channel, image, settings))];
        }
        const std::size_t target =
            settings.channels_last
                ? (at(y) * at(width) + at(x)) * at(settings.channels) + at(channel)
                : (at(channel) * at(height) + at(y)) * at(width) + at(x);
        Store(tensor, target, pixel, Normalized(pixel, channel, settings));
      }
    }
  }
  const std::size_t bytes = settings.batch > 1 ? tensor.size_in_bytes() / at(settings.batch) : 0;
  auto* const start = static_cast<unsigned char*>(tensor.data());
  for (int item = 1; item < settings.batch; ++item) {
    std::memcpy(start + at(item) * bytes, start, bytes);
  }
  return tensor;
}

}  // namespace model_runner

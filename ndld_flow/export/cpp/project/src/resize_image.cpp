// The arithmetic of Pillow's resampling (bilinear, bicubic) and of ndld_flow's `linear`. The
// results are equal bit for bit, so the order of operations and the types matter here.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "model_runner/image.h"

namespace model_runner {
namespace {

double Bilinear(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

// Keys' bicubic convolution with a = -0.5.
double Bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1.0) {
    return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  }
  return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * kA : 0.0;
}

// Weights are integers in units of 2^-22: 8 bits for the result and 2 for overflow stay free.
constexpr int kWeightBits = 32 - 8 - 2;

struct Window {
  int first = 0;
  std::vector<std::int32_t> weights;
};

// The weights of each new pixel of an axis: `size` pixels from the range [start, end) of `own`.
std::vector<Window> WindowsOf(int own, float start, float end, int size, Interpolation kind) {
  const bool is_bicubic = kind == Interpolation::kBicubic;
  const double scale = static_cast<double>(end - start) / size;
  const double stretch = std::max(scale, 1.0);
  const double support = (is_bicubic ? 2.0 : 1.0) * stretch;
  std::vector<Window> windows(static_cast<std::size_t>(size));
  for (int place = 0; place < size; ++place) {
    const double center = static_cast<double>(start) + (place + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int last = std::min(static_cast<int>(center + support + 0.5), own);
    std::vector<double> exact;
    double sum = 0.0;
    for (int pixel = first; pixel < last; ++pixel) {
      const double distance = (pixel - center + 0.5) * (1.0 / stretch);
      exact.push_back(is_bicubic ? Bicubic(distance) : Bilinear(distance));
      sum += exact.back();
    }
    Window& window = windows[static_cast<std::size_t>(place)];
    window.first = first;
    for (const double weight : exact) {
      const double scaled = (sum != 0.0 ? weight / sum : weight) * (1 << kWeightBits);
      window.weights.push_back(static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
    }
  }
  return windows;
}

unsigned char Clipped(std::int32_t sum) {
  return static_cast<unsigned char>(std::clamp(sum >> kWeightBits, 0, 255));
}

// Resamples the columns (along x) or the rows of an image.
Image Resample(const Image& image, const std::vector<Window>& windows, bool along_x) {
  Image result{image.width, image.height, image.channels, {}};
  (along_x ? result.width : result.height) = static_cast<int>(windows.size());
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * channels;
  const std::size_t stride = along_x ? channels : row;
  result.pixels.reserve(static_cast<std::size_t>(result.width) *
                        static_cast<std::size_t>(result.height) * channels);
  for (int y = 0; y < result.height; ++y) {
    for (int x = 0; x < result.width; ++x) {
      const Window& window = windows[static_cast<std::size_t>(along_x ? x : y)];
      const auto first_x = static_cast<std::size_t>(along_x ? window.first : x);
      const auto first_y = static_cast<std::size_t>(along_x ? y : window.first);
      for (std::size_t channel = 0; channel < channels; ++channel) {
        std::int32_t sum = 1 << (kWeightBits - 1);
        std::size_t place = first_y * row + first_x * channels + channel;
        for (const std::int32_t weight : window.weights) {
          sum += image.pixels[place] * weight;
          place += stride;
        }
        result.pixels.push_back(Clipped(sum));
      }
    }
  }
  return result;
}

Image ResizeAsPillow(const Image& image, int width, int height, const ImageSettings& settings,
                     int left, int top, int part_width, int part_height) {
  const double across = static_cast<double>(image.width) / width;
  const double down = static_cast<double>(image.height) / height;
  const bool is_whole = part_width == width && part_height == height;
  const float x0 = is_whole ? 0.0F : static_cast<float>(left * across);
  const float y0 = is_whole ? 0.0F : static_cast<float>(top * down);
  const float x1 =
      is_whole ? static_cast<float>(image.width) : static_cast<float>((left + part_width) * across);
  const float y1 =
      is_whole ? static_cast<float>(image.height) : static_cast<float>((top + part_height) * down);
  const bool needs_x =
      part_width != image.width || x0 != 0.0F || x1 != static_cast<float>(part_width);
  const bool needs_y =
      part_height != image.height || y0 != 0.0F || y1 != static_cast<float>(part_height);
  const int less_height = image.height - part_height;
  const bool rows_first = settings.has_pass_order_of_pillow_13 && less_height > 0 &&
                          less_height > 2 * (image.width - part_width);
  // Each pass rounds to 8 bits, so their order matters.
  Image result = image;
  for (const bool along_x : {!rows_first, rows_first}) {
    if (along_x && needs_x) {
      const auto windows = WindowsOf(image.width, x0, x1, part_width, settings.interpolation);
      result = Resample(result, windows, true);
    } else if (!along_x && needs_y) {
      const auto windows = WindowsOf(image.height, y0, y1, part_height, settings.interpolation);
      result = Resample(result, windows, false);
    }
  }
  return result;
}

struct Neighbours {
  std::size_t low;
  std::size_t high;
  float share;
};

// The two nearest pixels, with half-pixel centres.
Neighbours NeighboursOf(int place, int own, int size) {
  const double exact = (place + 0.5) * (static_cast<double>(own) / size) - 0.5;
  const double center = std::clamp(exact, 0.0, static_cast<double>(own - 1));
  const int low = static_cast<int>(center);
  return {static_cast<std::size_t>(low), static_cast<std::size_t>(std::min(low + 1, own - 1)),
          static_cast<float>(center - low)};
}

Image ResizeLinearly(const Image& image, int width, int height, int left, int top, int part_width,
                     int part_height) {
  Image result{part_width, part_height, image.channels, {}};
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * channels;
  for (int y = top; y < top + part_height; ++y) {
    const Neighbours rows = NeighboursOf(y, image.height, height);
    for (int x = left; x < left + part_width; ++x) {
      const Neighbours columns = NeighboursOf(x, image.width, width);
      for (std::size_t channel = 0; channel < channels; ++channel) {
        const auto across = [&](std::size_t line) {
          const unsigned char* start = image.pixels.data() + line * row + channel;
          const auto first = static_cast<float>(start[columns.low * channels]);
          const auto second = static_cast<float>(start[columns.high * channels]);
          return first + (second - first) * columns.share;
        };
        const float first = across(rows.low);
        const float second = across(rows.high);
        const float value = first + (second - first) * rows.share;
        result.pixels.push_back(static_cast<unsigned char>(std::floor(value + 0.5F)));
      }
    }
  }
  return result;
}

}  // namespace

Image ResizeImage(const Image& image, int width, int height, const ImageSettings& settings,
                  int left, int top, int part_width, int part_height) {
  if (settings.interpolation == Interpolation::kLinear) {
    return ResizeLinearly(image, width, height, left, top, part_width, part_height);
  }
  return ResizeAsPillow(image, width, height, settings, left, top, part_width, part_height);
}

}  // namespace model_runner

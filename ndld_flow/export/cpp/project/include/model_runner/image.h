#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model_runner/tensor.h"

namespace model_runner {

// An upright image with 8 bits per channel: rows from the top, and 1 (gray) or 3 (RGB) values for
// each pixel.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<unsigned char> pixels;
};

enum class Resize { kStretch, kLetterbox, kCrop };
// kBilinear and kBicubic average all pixels that a smaller one covers, with the arithmetic of
// Pillow; kLinear uses the four nearest pixels.
enum class Interpolation { kBilinear, kBicubic, kLinear };
enum class Color { kRgb, kBgr, kGray };

// The conversion of an image to an input: the recipe's settings.
struct ImageSettings {
  int channels = 3;
  // 0: the image's own, or what follows from the other one.
  int width = 0;
  int height = 0;
  // 0: the input has no dimension for it. One image fills the whole batch.
  int batch = 1;
  bool channels_last = false;
  Color color = Color::kRgb;
  Resize resize = Resize::kStretch;
  Interpolation interpolation = Interpolation::kBilinear;
  // From version 13 on, Pillow resizes rows first if the height shrinks by more than twice as many
  // pixels as the width. This is that of the version with which ndld-flow made the sample.
  bool has_pass_order_of_pillow_13 = true;
  // The place of a letterboxed or cropped image: the middle, or the left and the top.
  bool is_centered = true;
  double crop_share = 1.0;
  // One value, or one for each channel. An input of integers gets the pixels from 0 to 255, one of
  // floats (pixel * scale - mean) / std. Without `scale`, pixels are divided by 255.
  std::vector<int> pad = {114};
  std::optional<float> scale;
  std::vector<float> mean = {0.0F};
  std::vector<float> std = {1.0F};
};

// Reads a PNG or a JPEG file with 1 or 3 channels, rotated as its EXIF data declare. Transparency
// is ignored. Throws std::runtime_error for a damaged file, and for one that this program does not
// read as Python does: 16-bit gray, CMYK, or an orientation in XMP.
Image ReadImage(const std::filesystem::path& path, int channels);

// Returns an image with another size; only the part from (left, top) on with this width and height
// is computed.
Image ResizeImage(const Image& image, int width, int height, const ImageSettings& settings,
                  int left, int top, int part_width, int part_height);

// Converts an image to the values of an input of this element type.
Tensor ToTensor(const Image& image, const ImageSettings& settings, Dtype dtype);

// The number of channels with which an image is read.
int ChannelsToRead(const ImageSettings& settings);

}  // namespace model_runner

// PNG by libpng and JPEG by libjpeg(-turbo), with the conversions that Pillow makes.

#include <cstdio>

// jpeglib.h uses the names of cstdio without including it.
#include <jpeglib.h>
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "model_runner/image.h"

namespace model_runner {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr std::uint64_t kMostPixels = 89478485;  // Pillow's limit

// A file that is being decoded. The C libraries leave a decoder by longjmp, so that everything that
// has a destructor is here, and not in the functions that call them.
struct Source {
  const Bytes* file = nullptr;
  std::size_t place = 0;
  Image image;
  std::vector<unsigned char*> rows;
  Bytes exif;
  std::string error;
  std::jmp_buf on_error{};
};

bool Allocate(Source& source, std::uint64_t width, std::uint64_t height, int channels) {
  if (width == 0 || height == 0 || width > kMostPixels || height > kMostPixels / width) {
    source.error = "it has " + std::to_string(width) + "x" + std::to_string(height) + " pixels";
    return false;
  }
  const std::size_t row = static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
  source.image.width = static_cast<int>(width);
  source.image.height = static_cast<int>(height);
  source.image.channels = channels;
  source.image.pixels.resize(row * static_cast<std::size_t>(height));
  source.rows.clear();
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    source.rows.push_back(source.image.pixels.data() + y * row);
  }
  return true;
}

void OnPngError(png_structp png, png_const_charp message) {
  auto* source = static_cast<Source*>(png_get_error_ptr(png));
  source->error = message;
  std::longjmp(source->on_error, 1);
}

void OnPngWarning(png_structp, png_const_charp) {}

void ReadPngBytes(png_structp png, png_bytep target, png_size_t size) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (size > source->file->size() - source->place) {
    png_error(png, "it is truncated");
  }
  std::memcpy(target, source->file->data() + source->place, size);
  source->place += size;
}

// Gray (with or without alpha) becomes 1 channel, everything else RGB.
void DecodePngRows(png_structp png, png_infop info, Source& source) {
  png_set_user_limits(png, 0x7FFFFFFF, 0x7FFFFFFF);
  png_read_info(png, info);
  const int color = png_get_color_type(png, info);
  const int depth = png_get_bit_depth(png, info);
  if (color == PNG_COLOR_TYPE_GRAY && depth == 16) {
    png_error(png, "its gray pixels have 16 bits, which this program does not read: convert it");
  }
  png_set_strip_16(png);
  png_set_packing(png);
  if (color == PNG_COLOR_TYPE_PALETTE) {
    png_set_palette_to_rgb(png);
  }
  if (color == PNG_COLOR_TYPE_GRAY && depth < 8) {
    png_set_expand_gray_1_2_4_to_8(png);
  }
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  if (!Allocate(source, png_get_image_width(png, info), png_get_image_height(png, info),
                png_get_channels(png, info))) {
    std::longjmp(source.on_error, 1);
  }
  png_read_image(png, source.rows.data());
  png_read_end(png, info);
  png_bytep exif = nullptr;
  png_uint_32 size = 0;
  if (png_get_eXIf_1(png, info, &size, &exif) != 0) {
    source.exif.assign(exif, exif + size);
  }
}

bool DecodePng(Source& source) {
  png_structp png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, OnPngError, OnPngWarning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  bool is_decoded = false;
  if (info != nullptr && setjmp(source.on_error) == 0) {
    png_set_read_fn(png, &source, ReadPngBytes);
    DecodePngRows(png, info, source);
    is_decoded = true;
  } else {
    is_decoded = false;
  }
  png_destroy_read_struct(&png, &info, nullptr);
  return is_decoded;
}

struct JpegErrors {
  jpeg_error_mgr base;
  Source* source;
};

void OnJpegError(j_common_ptr info) {
  std::array<char, JMSG_LENGTH_MAX> message{};
  info->err->format_message(info, message.data());
  Source* source = reinterpret_cast<JpegErrors*>(info->err)->source;
  source->error = message.data();
  std::longjmp(source->on_error, 1);
}

// A warning is about damaged data, which libjpeg replaces by gray pixels.
void OnJpegMessage(j_common_ptr info, int level) {
  if (level < 0) {
    OnJpegError(info);
  }
}

void DecodeJpegRows(jpeg_decompress_struct& jpeg, Source& source) {
  jpeg_mem_src(&jpeg, source.file->data(), static_cast<unsigned long>(source.file->size()));
  jpeg_save_markers(&jpeg, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(&jpeg, TRUE);
  if (jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK) {
    source.error = "its colors are CMYK, which this program does not read: convert it";
    std::longjmp(source.on_error, 1);
  }
  jpeg.out_color_space = jpeg.jpeg_color_space == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  if (!Allocate(source, jpeg.output_width, jpeg.output_height, jpeg.output_components)) {
    std::longjmp(source.on_error, 1);
  }
  while (jpeg.output_scanline < jpeg.output_height) {
    jpeg_read_scanlines(&jpeg, source.rows.data() + jpeg.output_scanline, 1);
  }
  constexpr std::string_view kExif("Exif\0\0", 6);
  for (jpeg_saved_marker_ptr marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    if (source.exif.empty() && marker->data_length > kExif.size() &&
        std::memcmp(marker->data, kExif.data(), kExif.size()) == 0) {
      source.exif.assign(marker->data + kExif.size(), marker->data + marker->data_length);
    }
  }
  jpeg_finish_decompress(&jpeg);  // it frees the markers
}

bool DecodeJpeg(Source& source) {
  jpeg_decompress_struct jpeg{};
  JpegErrors errors{};
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = OnJpegError;
  errors.base.emit_message = OnJpegMessage;
  errors.source = &source;
  bool is_decoded = false;
  if (setjmp(source.on_error) == 0) {
    jpeg_create_decompress(&jpeg);
    DecodeJpegRows(jpeg, source);
    is_decoded = true;
  } else {
    is_decoded = false;
  }
  jpeg_destroy_decompress(&jpeg);
  return is_decoded;
}

// The orientation in EXIF data (TIFF 6.0, tag 0x0112): 1 to 8, or 0 if there is none.
int OrientationOf(const Bytes& exif) {
  const bool is_big = exif.size() > 1 && exif[0] == 'M';
  const auto number = [&](std::size_t place, std::size_t width) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t shift = is_big ? width - 1 - i : i;
      value |= static_cast<std::uint32_t>(exif[place + i]) << (8 * shift);
    }
    return value;
  };
  if (exif.size() < 10) {
    return 0;
  }
  const std::size_t folder = number(4, 4);
  if (folder > exif.size() - 2) {
    return 0;
  }
  const std::size_t entries = number(folder, 2);
  for (std::size_t i = 0; i < entries && folder + 2 + (i + 1) * 12 <= exif.size(); ++i) {
    const std::size_t entry = folder + 2 + i * 12;
    if (number(entry, 2) == 0x0112 && number(entry + 2, 2) == 3) {
      return static_cast<int>(number(entry + 8, 2));
    }
  }
  return 0;
}

// Turns an image upright. https://exiftool.org/TagNames/EXIF.html lists the orientations.
Image Upright(Image image, int orientation) {
  if (orientation < 2 || orientation > 8) {
    return image;
  }
  const bool swaps = orientation >= 5;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image turned{
      swaps ? image.height : image.width, swaps ? image.width : image.height, image.channels, {}};
  turned.pixels.reserve(image.pixels.size());
  for (int y = 0; y < turned.height; ++y) {
    for (int x = 0; x < turned.width; ++x) {
      const int along_x = swaps ? y : x;
      const int along_y = swaps ? x : y;
      const int own_x = from_right ? image.width - 1 - along_x : along_x;
      const int own_y = from_bottom ? image.height - 1 - along_y : along_y;
      const std::size_t first =
          (static_cast<std::size_t>(own_y) * static_cast<std::size_t>(image.width) +
           static_cast<std::size_t>(own_x)) *
          static_cast<std::size_t>(image.channels);
      for (int channel = 0; channel < image.channels; ++channel) {
        turned.pixels.push_back(image.pixels[first + static_cast<std::size_t>(channel)]);
      }
    }
  }
  return turned;
}

// ITU-R 601-2 luma in 16-bit fixed point.
Image WithChannels(Image image, int channels) {
  if (image.channels == channels) {
    return image;
  }
  Image result{image.width, image.height, channels, {}};
  result.pixels.reserve(image.pixels.size() / static_cast<std::size_t>(image.channels) *
                        static_cast<std::size_t>(channels));
  for (std::size_t i = 0; i < image.pixels.size(); i += static_cast<std::size_t>(image.channels)) {
    const unsigned char* pixel = image.pixels.data() + i;
    if (channels == 3) {
      result.pixels.insert(result.pixels.end(), 3, *pixel);
    } else {
      const std::uint32_t luma = pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U;
      result.pixels.push_back(static_cast<unsigned char>(luma >> 16));
    }
  }
  return result;
}

bool Contains(const Bytes& file, std::string_view text) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  return all.find(text) != std::string_view::npos;
}

}  // namespace

Image ReadImage(const std::filesystem::path& path, int channels) {
  const auto fail = [&](const std::string& reason) {
    throw std::runtime_error(path.string() + ": " + reason);
  };
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    fail("it cannot be opened");
  }
  const Bytes file{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  Source source;
  source.file = &file;
  bool is_decoded = false;
  if (file.size() > 8 && png_sig_cmp(file.data(), 0, 8) == 0) {
    is_decoded = DecodePng(source);
  } else if (file.size() > 3 && file[0] == 0xFF && file[1] == 0xD8 && file[2] == 0xFF) {
    is_decoded = DecodeJpeg(source);
  } else {
    fail("it is neither a PNG nor a JPEG file");
  }
  if (!is_decoded) {
    fail(source.error.empty() ? "it cannot be decoded" : source.error);
  }
  const int orientation = OrientationOf(source.exif);
  if (orientation == 0 && Contains(file, "tiff:Orientation")) {
    fail("its orientation is in XMP, which this program does not read: save it upright");
  }
  return WithChannels(Upright(std::move(source.image), orientation), channels);
}

}  // namespace model_runner

// Runs the model on arrays, images or random values, and measures its latency.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "model_runner/description.h"
#include "model_runner/image.h"
#include "model_runner/model.h"
#include "model_runner/npy.h"

namespace {

namespace fs = std::filesystem;
using model_runner::Dtype;
using model_runner::InputInfo;
using model_runner::Shape;
using model_runner::Tensor;

constexpr const char* kHelp =
    R"(usage: run_model [options]

Without options, the model runs once on the values that the recipe gave its inputs.

  --describe                 print inputs and outputs, and exit
  --input NAME=FILE          values of an input: a .npy file, or a PNG or JPEG image
  --random                   random values for all inputs of floats without --input
  --seed N                   seed of random values (0)
  --shape NAME=1x3x224x224   random values of this shape for an input of floats
  --outputs FOLDER           write the outputs to output_0.npy, output_1.npy, ...
  --write-inputs FOLDER      write the inputs to input_0.npy, input_1.npy, ...
  --iterations N             measured runs (1)
  --warmup N                 runs before these (0)
  --model FILE               another model with the same inputs and outputs
  --provider NAME            ONNX Runtime: cpu, cuda, tensorrt, directml, ... (cpu)
  --provider-option K=V      ONNX Runtime: option of the provider, such as device_id=1
  --threads N                ONNX Runtime: threads within an operator; 0: its own choice
  --device N                 TensorRT: the GPU (0)
)";

struct Arguments {
  model_runner::ModelOptions model;
  std::map<std::size_t, fs::path> files;
  std::map<std::size_t, Shape> shapes;
  fs::path outputs;
  fs::path inputs;
  bool is_random = false;
  bool only_describes = false;
  int seed = 0;
  int iterations = 1;
  int warmup = 0;
};

[[noreturn]] void Fail(const std::string& reason) { throw std::invalid_argument(reason); }

int NumberOf(const std::string& option, std::string_view text, int least) {
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || number < least) {
    Fail(option + " needs a number from " + std::to_string(least) + " on, not \"" +
         std::string(text) + "\"");
  }
  return number;
}

// The index of the input in NAME=VALUE, and VALUE. Names may contain "=": the longest one counts.
std::pair<std::size_t, std::string> InputAndValue(const std::string& option,
                                                  const std::string& text) {
  const std::vector<InputInfo>& inputs = model_runner::DescribeModel().inputs;
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string start = inputs[i].tensor.name + "=";
    const bool fits = text.compare(0, start.size(), start) == 0;
    if (fits && (!found || start.size() > inputs[*found].tensor.name.size() + 1)) {
      found = i;
    }
  }
  if (!found) {
    Fail(option + " \"" + text + "\" names no input of the model: see --describe");
  }
  return {*found, text.substr(inputs[*found].tensor.name.size() + 1)};
}

Shape ParseShape(const std::string& text) {
  Shape shape;
  std::size_t start = 0;
  while (text != "scalar" && start <= text.size()) {
    const std::size_t end = std::min(text.find('x', start), text.size());
    shape.push_back(NumberOf("--shape", std::string_view(text).substr(start, end - start), 0));
    start = end + 1;
  }
  return shape;
}

void ReadOption(Arguments& arguments, const std::string& option, const std::string& value) {
  if (option == "--input") {
    const auto [input, file] = InputAndValue(option, value);
    arguments.files[input] = file;
  } else if (option == "--shape") {
    const auto [input, shape] = InputAndValue(option, value);
    arguments.shapes[input] = ParseShape(shape);
  } else if (option == "--outputs") {
    arguments.outputs = value;
  } else if (option == "--write-inputs") {
    arguments.inputs = value;
  } else if (option == "--seed") {
    arguments.seed = NumberOf(option, value, 0);
  } else if (option == "--iterations") {
    arguments.iterations = NumberOf(option, value, 1);
  } else if (option == "--warmup") {
    arguments.warmup = NumberOf(option, value, 0);
  } else if (option == "--model") {
    arguments.model.model = value;
  } else if (option == "--provider") {
    arguments.model.provider = value;
  } else if (option == "--provider-option") {
    const std::size_t equals = value.find('=');
    if (equals == std::string::npos) {
      Fail(option + " needs KEY=VALUE, not \"" + value + "\"");
    }
    arguments.model.provider_options[value.substr(0, equals)] = value.substr(equals + 1);
  } else if (option == "--threads") {
    arguments.model.threads = NumberOf(option, value, 0);
  } else if (option == "--device") {
    arguments.model.device = NumberOf(option, value, 0);
  } else {
    Fail("there is no option " + option + ": see --help");
  }
}

Arguments ReadArguments(const std::vector<std::string>& words) {
  Arguments arguments;
  arguments.model.folder = PROJECT_FOLDER;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--random") {
      arguments.is_random = true;
    } else if (words[i] == "--describe") {
      arguments.only_describes = true;
    } else if (i + 1 == words.size()) {
      Fail(words[i].rfind("--", 0) == 0 ? words[i] + " needs a value, or is no option: see --help"
                                        : "unexpected \"" + words[i] + "\": see --help");
    } else {
      ReadOption(arguments, words[i], words[i + 1]);
      ++i;
    }
  }
  return arguments;
}

// Uniform values in [low, high). The engine is specified by the standard, so that equal seeds give
// equal values with every compiler; the values differ from those of numpy.
Tensor RandomValues(const InputInfo& input, const Shape& shape, int seed, std::size_t place) {
  Tensor tensor(input.tensor.dtype, shape);
  std::mt19937_64 engine(static_cast<std::uint64_t>(seed) * 1000003U + place);
  for (std::size_t i = 0; i < tensor.count(); ++i) {
    const double share = static_cast<double>(engine() >> 11) * 0x1p-53;
    const double value = input.low + (input.high - input.low) * share;
    if (tensor.dtype() == Dtype::kFloat64) {
      tensor.values<double>()[i] = value;
    } else if (tensor.dtype() == Dtype::kFloat32) {
      tensor.values<float>()[i] = static_cast<float>(value);
    } else if (tensor.dtype() == Dtype::kFloat16) {
      tensor.values<model_runner::Float16>()[i] =
          model_runner::Float16::From(static_cast<float>(value));
    } else {
      tensor.values<model_runner::Bfloat16>()[i] =
          model_runner::Bfloat16::From(static_cast<float>(value));
    }
  }
  return tensor;
}

Tensor ReadFile(const InputInfo& input, const fs::path& file) {
  const std::string name = model_runner::Visible(input.tensor.name);
  if (file.extension() == ".npy") {
    return model_runner::ReadNpy(file, input.tensor.dtype);
  }
  if (!input.image) {
    Fail("input \"" + name + "\" takes .npy files: the recipe has no image settings for it");
  }
#ifdef MODEL_RUNNER_READS_IMAGES
  const int channels = model_runner::ChannelsToRead(*input.image);
  return model_runner::ToTensor(model_runner::ReadImage(file, channels), *input.image,
                                input.tensor.dtype);
#else
  Fail("input \"" + name + "\": this program was built without READ_IMAGES");
#endif
}

Tensor ValuesOf(const Arguments& arguments, std::size_t place) {
  const InputInfo& input = model_runner::DescribeModel().inputs[place];
  if (const auto file = arguments.files.find(place); file != arguments.files.end()) {
    return ReadFile(input, file->second);
  }
  const auto given = arguments.shapes.find(place);
  const bool is_float = model_runner::IsFloat(input.tensor.dtype);
  if (given != arguments.shapes.end() && !is_float) {
    // Random integers would be positions, lengths or numbers of tokens that mean nothing.
    Fail("input \"" + model_runner::Visible(input.tensor.name) + "\" holds " +
         model_runner::NameOf(input.tensor.dtype) + ": give its values by --input");
  }
  Tensor sample = model_runner::ReadNpy(arguments.model.folder / input.sample, input.tensor.dtype);
  if (given == arguments.shapes.end() && !(arguments.is_random && is_float)) {
    return sample;
  }
  const Shape& shape = given != arguments.shapes.end() ? given->second : sample.shape();
  return RandomValues(input, shape, arguments.seed, place);
}

void Describe() {
  const auto print = [](const char* kind, const model_runner::TensorInfo& tensor,
                        const std::string& more) {
    std::cout << kind << "  " << model_runner::Visible(tensor.name) << "  "
              << model_runner::NameOf(tensor.dtype) << " " << tensor.ShapeText() << more << "\n";
  };
  for (const InputInfo& input : model_runner::DescribeModel().inputs) {
    print("input ", input.tensor, input.image ? "  (.npy, PNG, JPEG)" : "  (.npy)");
  }
  for (const model_runner::TensorInfo& output : model_runner::DescribeModel().outputs) {
    print("output", output, "");
  }
}

void PrintLatency(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  double sum = 0.0;
  for (const double time : times) {
    sum += time;
  }
  const std::size_t count = times.size();
  const double median = (times[(count - 1) / 2] + times[count / 2]) / 2;
  const auto rank = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(count)));
  std::printf("latency of %zu run%s: min %.4f ms, median %.4f ms, mean %.4f ms, p95 %.4f ms\n",
              count, count == 1 ? "" : "s", times.front(), median, sum / static_cast<double>(count),
              times[rank - 1]);
}

void WriteAll(const fs::path& folder, const std::string& start,
              const std::vector<Tensor>& tensors) {
  if (folder.empty()) {
    return;
  }
  fs::create_directories(folder);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    model_runner::WriteNpy(folder / (start + std::to_string(i) + ".npy"), tensors[i]);
  }
}

void Run(const Arguments& arguments) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < model_runner::DescribeModel().inputs.size(); ++i) {
    inputs.push_back(ValuesOf(arguments, i));
  }
  WriteAll(arguments.inputs, "input_", inputs);
  model_runner::Model model(arguments.model);
  std::cout << model_runner::RuntimeVersion() << "\n";
  std::vector<Tensor> outputs;
  for (int i = 0; i < arguments.warmup; ++i) {
    outputs = model.Run(inputs);
  }
  std::vector<double> times;
  for (int i = 0; i < arguments.iterations; ++i) {
    const auto start = std::chrono::steady_clock::now();
    outputs = model.Run(inputs);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const model_runner::TensorInfo& output = model_runner::DescribeModel().outputs[i];
    std::cout << "output " << i << "  " << model_runner::Visible(output.name) << "  "
              << model_runner::NameOf(outputs[i].dtype()) << " "
              << model_runner::TextOf(outputs[i].shape()) << "\n";
  }
  WriteAll(arguments.outputs, "output_", outputs);
  std::cout << std::flush;
  PrintLatency(times);
}

}  // namespace

int main(int count, char** words) {
  try {
    const std::vector<std::string> given(words + 1, words + count);
    if (std::find(given.begin(), given.end(), "--help") != given.end()) {
      std::cout << kHelp;
      return EXIT_SUCCESS;
    }
    const Arguments arguments = ReadArguments(given);
    if (arguments.only_describes) {
      Describe();
    } else {
      Run(arguments);
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "run_model: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}

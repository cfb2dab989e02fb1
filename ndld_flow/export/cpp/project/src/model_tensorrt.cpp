// TensorRT 10 and 11, and TensorRT-RTX: their C++ API is the same for running an engine.

#include <NvInfer.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "model_runner/model.h"

namespace model_runner {
namespace {

struct Pair {
  Dtype dtype;
  nvinfer1::DataType element;
};

constexpr Pair kElements[] = {
    {Dtype::kBool, nvinfer1::DataType::kBOOL},     {Dtype::kInt8, nvinfer1::DataType::kINT8},
    {Dtype::kInt32, nvinfer1::DataType::kINT32},   {Dtype::kInt64, nvinfer1::DataType::kINT64},
    {Dtype::kUint8, nvinfer1::DataType::kUINT8},   {Dtype::kFloat16, nvinfer1::DataType::kHALF},
    {Dtype::kBfloat16, nvinfer1::DataType::kBF16}, {Dtype::kFloat32, nvinfer1::DataType::kFLOAT},
};

bool Matches(Dtype dtype, nvinfer1::DataType element) {
  return std::any_of(std::begin(kElements), std::end(kElements), [&](const Pair& pair) {
    return pair.dtype == dtype && pair.element == element;
  });
}

// Prints warnings and keeps the last error for the message of the exception.
class Logger final : public nvinfer1::ILogger {
 public:
  void log(Severity severity, const char* message) noexcept override {
    if (severity <= Severity::kWARNING) {
      std::cerr << "TensorRT: " << message << "\n";
    }
    if (severity <= Severity::kERROR) {
      error_ = message;
    }
  }
  const std::string& error() const { return error_; }

 private:
  std::string error_;
};

void Check(cudaError_t status) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
  }
}

// Memory of the GPU that grows and never shrinks. It is never empty, which TensorRT rejects.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Returns null if there is not enough.
  void* Reserve(std::size_t size) noexcept {
    size = std::max<std::size_t>(size, 1);
    if (size > size_) {
      cudaFree(data_);
      data_ = nullptr;
      size_ = cudaMalloc(&data_, size) == cudaSuccess ? size : 0;
    }
    return size_ == 0 ? nullptr : data_;
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// An output, whose shape may be known only after the run.
class Output final : public nvinfer1::IOutputAllocator {
 public:
  void* reallocateOutputAsync(const char*, void*, std::uint64_t size, std::uint64_t,
                              cudaStream_t) noexcept override {
    return memory_.Reserve(static_cast<std::size_t>(size));
  }
  void notifyShape(const char*, const nvinfer1::Dims& dims) noexcept override { dims_ = dims; }

  const void* data() const { return memory_.data(); }
  Shape shape() const { return Shape(dims_.d, dims_.d + dims_.nbDims); }

 private:
  DeviceMemory memory_;
  nvinfer1::Dims dims_{};
};

class Stream {
 public:
  Stream() { Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

nvinfer1::Dims DimsOf(const Shape& shape) {
  nvinfer1::Dims dims{};
  if (shape.size() > static_cast<std::size_t>(nvinfer1::Dims::MAX_DIMS)) {
    throw std::invalid_argument("shape " + TextOf(shape) + " has too many dimensions for TensorRT");
  }
  dims.nbDims = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.d);
  return dims;
}

std::vector<char> ReadEngine(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path.string() + ": it cannot be opened");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

struct Model::Implementation {
  Logger logger;
  Stream stream;
  std::unique_ptr<nvinfer1::IRuntime> runtime;
  std::unique_ptr<nvinfer1::ICudaEngine> engine;
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  std::vector<DeviceMemory> inputs;
  std::vector<Output> outputs;

  explicit Implementation(const ModelOptions& options)
      : inputs(DescribeModel().inputs.size()), outputs(DescribeModel().outputs.size()) {
    const auto path =
        options.model.empty() ? options.folder / DescribeModel().model : options.model;
    const std::vector<char> plan = ReadEngine(path);
    runtime.reset(nvinfer1::createInferRuntime(logger));
    if (!runtime) {
      throw std::runtime_error("TensorRT does not start: " + logger.error());
    }
    engine.reset(runtime->deserializeCudaEngine(plan.data(), plan.size()));
    if (!engine) {
      throw std::runtime_error(path.string() +
                               ": TensorRT does not load this engine, which needs the "
                               "release and the kind of GPU that it was built for: " +
                               logger.error());
    }
    CheckTensors();
    context.reset(engine->createExecutionContext());
    if (!context) {
      throw std::runtime_error("TensorRT creates no execution context: " + logger.error());
    }
  }

  void CheckTensors() const {
    const Description& described = DescribeModel();
    const auto expected = described.inputs.size() + described.outputs.size();
    if (static_cast<std::size_t>(engine->getNbIOTensors()) != expected) {
      throw std::runtime_error("the engine has other inputs or outputs: export it again");
    }
    for (const InputInfo& input : described.inputs) {
      CheckTensor(input.tensor, nvinfer1::TensorIOMode::kINPUT);
    }
    for (const TensorInfo& output : described.outputs) {
      CheckTensor(output, nvinfer1::TensorIOMode::kOUTPUT);
    }
  }

  void CheckTensor(const TensorInfo& expected, nvinfer1::TensorIOMode mode) const {
    const char* name = expected.name.c_str();
    const bool is_equal = engine->getTensorIOMode(name) == mode &&
                          Matches(expected.dtype, engine->getTensorDataType(name));
    if (!is_equal) {
      throw std::runtime_error("the engine has no \"" + Visible(expected.name) + "\", " +
                               NameOf(expected.dtype) + ", at this place: export it again");
    }
    if (engine->getTensorFormat(name) != nvinfer1::TensorFormat::kLINEAR) {
      throw std::runtime_error("\"" + Visible(expected.name) + "\" is not linear in memory");
    }
  }

  // TensorRT reads the values of shape tensors, and may write them, in the memory of the host.
  bool IsOnHost(const std::string& name) const {
    return engine->getTensorLocation(name.c_str()) == nvinfer1::TensorLocation::kHOST;
  }

  void Require(bool is_done, const std::string& what) const {
    if (!is_done) {
      throw std::runtime_error("TensorRT: " + what + ": " + logger.error());
    }
  }

  void SetInput(std::size_t place, const Tensor& input) {
    const std::string& name = DescribeModel().inputs[place].tensor.name;
    const std::string shown = "input \"" + Visible(name) + "\"";
    Require(context->setInputShape(name.c_str(), DimsOf(input.shape())),
            shown + " of shape " + TextOf(input.shape()) + " is outside of the engine's range");
    if (IsOnHost(name)) {
      Require(context->setInputTensorAddress(name.c_str(), input.data()), shown);
      return;
    }
    void* memory = inputs[place].Reserve(input.size_in_bytes());
    Require(memory != nullptr, "not enough memory for " + shown);
    Check(cudaMemcpyAsync(memory, input.data(), input.size_in_bytes(), cudaMemcpyHostToDevice,
                          stream.get()));
    Require(context->setInputTensorAddress(name.c_str(), memory), shown);
  }
};

Model::Model(const ModelOptions& options) {
  Check(cudaSetDevice(options.device));  // before a stream is created
  implementation_ = std::make_unique<Implementation>(options);
}

Model::~Model() = default;

std::vector<Tensor> Model::Run(const std::vector<Tensor>& inputs) {
  CheckInputs(inputs);
  Implementation& own = *implementation_;
  const Description& described = DescribeModel();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    own.SetInput(i, inputs[i]);
  }
  for (std::size_t i = 0; i < described.outputs.size(); ++i) {
    const char* name = described.outputs[i].name.c_str();
    own.Require(!own.IsOnHost(described.outputs[i].name),
                "output \"" + Visible(name) + "\" is a shape tensor, which is not supported");
    own.Require(own.context->setOutputAllocator(name, &own.outputs[i]),
                "output \"" + Visible(name) + "\"");
  }
  own.Require(own.context->enqueueV3(own.stream.get()), "the run failed");
  Check(cudaStreamSynchronize(own.stream.get()));
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < described.outputs.size(); ++i) {
    Tensor result(described.outputs[i].dtype, own.outputs[i].shape());
    Check(cudaMemcpyAsync(result.data(), own.outputs[i].data(), result.size_in_bytes(),
                          cudaMemcpyDeviceToHost, own.stream.get()));
    results.push_back(std::move(result));
  }
  Check(cudaStreamSynchronize(own.stream.get()));
  return results;
}

std::string RuntimeVersion() {
  return "TensorRT, library version " + std::to_string(getInferLibVersion());
}

}  // namespace model_runner

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "model_runner/model.h"

namespace model_runner {
namespace {

struct Pair {
  Dtype dtype;
  ONNXTensorElementDataType element;
};

constexpr Pair kElements[] = {
    {Dtype::kBool, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL},
    {Dtype::kInt8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},
    {Dtype::kInt16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16},
    {Dtype::kInt32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {Dtype::kInt64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {Dtype::kUint8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
    {Dtype::kUint16, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16},
    {Dtype::kUint32, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32},
    {Dtype::kUint64, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64},
    {Dtype::kFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16},
    {Dtype::kBfloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {Dtype::kFloat32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {Dtype::kFloat64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
};

ONNXTensorElementDataType ElementOf(Dtype dtype) {
  for (const Pair& pair : kElements) {
    if (pair.dtype == dtype) {
      return pair.element;
    }
  }
  throw std::invalid_argument("unknown element type");
}

Dtype DtypeOfElement(ONNXTensorElementDataType element) {
  for (const Pair& pair : kElements) {
    if (pair.element == element) {
      return pair.dtype;
    }
  }
  throw std::runtime_error("element type " + std::to_string(element) + " is not supported");
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

void AddCuda(Ort::SessionOptions& options, const std::map<std::string, std::string>& given) {
  OrtCUDAProviderOptionsV2* raw = nullptr;
  Ort::ThrowOnError(Ort::GetApi().CreateCUDAProviderOptions(&raw));
  const std::unique_ptr<OrtCUDAProviderOptionsV2, void (*)(OrtCUDAProviderOptionsV2*)> cuda(
      raw, Ort::GetApi().ReleaseCUDAProviderOptions);
  for (const auto& [name, value] : given) {
    const char* key = name.c_str();
    const char* text = value.c_str();
    Ort::ThrowOnError(Ort::GetApi().UpdateCUDAProviderOptions(cuda.get(), &key, &text, 1));
  }
  options.AppendExecutionProvider_CUDA_V2(*cuda);
}

void AddTensorRt(Ort::SessionOptions& options, const std::map<std::string, std::string>& given) {
  OrtTensorRTProviderOptionsV2* raw = nullptr;
  Ort::ThrowOnError(Ort::GetApi().CreateTensorRTProviderOptions(&raw));
  const std::unique_ptr<OrtTensorRTProviderOptionsV2, void (*)(OrtTensorRTProviderOptionsV2*)>
      tensorrt(raw, Ort::GetApi().ReleaseTensorRTProviderOptions);
  for (const auto& [name, value] : given) {
    const char* key = name.c_str();
    const char* text = value.c_str();
    Ort::ThrowOnError(Ort::GetApi().UpdateTensorRTProviderOptions(tensorrt.get(), &key, &text, 1));
  }
  options.AppendExecutionProvider_TensorRT_V2(*tensorrt);
}

void AddProvider(Ort::SessionOptions& options, const ModelOptions& wanted) {
  std::string name = Lower(wanted.provider);
  const std::string suffix = "executionprovider";
  if (name.size() > suffix.size() &&
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
    name.resize(name.size() - suffix.size());
  }
  if (name == "cpu") {
    if (!wanted.provider_options.empty()) {
      throw std::invalid_argument("the provider cpu has no options");
    }
  } else if (name == "cuda") {
    AddCuda(options, wanted.provider_options);
  } else if (name == "tensorrt") {
    AddTensorRt(options, wanted.provider_options);
  } else {
    const std::unordered_map<std::string, std::string> given(wanted.provider_options.begin(),
                                                             wanted.provider_options.end());
    const bool is_directml = name == "dml" || name == "directml";
    if (is_directml) {  // it needs this, and sequential execution, which is the default
      options.DisableMemPattern();
    }
    options.AppendExecutionProvider(is_directml ? "DML" : wanted.provider, given);
  }
}

Ort::SessionOptions SessionOptionsOf(const ModelOptions& wanted) {
  Ort::SessionOptions options;
  options.SetGraphOptimizationLevel(ORT_ENABLE_ALL);
  if (wanted.threads > 0) {
    options.SetIntraOpNumThreads(wanted.threads);
  }
  for (const std::string& library : DescribeModel().operator_libraries) {
    options.RegisterCustomOpsLibrary((wanted.folder / library).c_str());
  }
  AddProvider(options, wanted);
  return options;
}

void CheckTensor(const char* kind, const TensorInfo& expected, const std::string& name,
                 const Ort::TypeInfo& type) {
  const bool is_tensor = type.GetONNXType() == ONNX_TYPE_TENSOR;
  const auto element = is_tensor ? type.GetTensorTypeAndShapeInfo().GetElementType()
                                 : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  if (name != expected.name || element != ElementOf(expected.dtype)) {
    throw std::runtime_error(std::string("the model has the ") + kind + " \"" + Visible(name) +
                             "\" where this program expects \"" + Visible(expected.name) + "\", " +
                             NameOf(expected.dtype) + ": export it again");
  }
}

}  // namespace

struct Model::Implementation {
  Ort::Env env;
  Ort::Session session;

  explicit Implementation(const ModelOptions& options)
      : env(ORT_LOGGING_LEVEL_WARNING, "model_runner"),
        session(env,
                (options.model.empty() ? options.folder / DescribeModel().model : options.model)
                    .c_str(),
                SessionOptionsOf(options)) {
    const Description& described = DescribeModel();
    if (session.GetInputCount() != described.inputs.size() ||
        session.GetOutputCount() != described.outputs.size()) {
      throw std::runtime_error("the model has other inputs or outputs: export it again");
    }
    Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < described.inputs.size(); ++i) {
      CheckTensor("input", described.inputs[i].tensor,
                  session.GetInputNameAllocated(i, allocator).get(), session.GetInputTypeInfo(i));
    }
    for (std::size_t i = 0; i < described.outputs.size(); ++i) {
      CheckTensor("output", described.outputs[i],
                  session.GetOutputNameAllocated(i, allocator).get(), session.GetOutputTypeInfo(i));
    }
  }
};

Model::Model(const ModelOptions& options)
    : implementation_(std::make_unique<Implementation>(options)) {}

Model::~Model() = default;

std::vector<Tensor> Model::Run(const std::vector<Tensor>& inputs) {
  CheckInputs(inputs);
  const Description& described = DescribeModel();
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<const char*> input_names;
  std::vector<Ort::Value> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    input_names.push_back(described.inputs[i].tensor.name.c_str());
    // ONNX Runtime only reads the inputs.
    values.push_back(Ort::Value::CreateTensor(
        memory, const_cast<void*>(inputs[i].data()), inputs[i].size_in_bytes(),
        inputs[i].shape().data(), inputs[i].shape().size(), ElementOf(inputs[i].dtype())));
  }
  std::vector<const char*> output_names;
  for (const TensorInfo& output : described.outputs) {
    output_names.push_back(output.name.c_str());
  }
  const std::vector<Ort::Value> results =
      implementation_->session.Run(Ort::RunOptions{nullptr}, input_names.data(), values.data(),
                                   values.size(), output_names.data(), output_names.size());
  std::vector<Tensor> outputs;
  for (const Ort::Value& result : results) {
    const auto info = result.GetTensorTypeAndShapeInfo();
    Tensor output(DtypeOfElement(info.GetElementType()), info.GetShape());
    if (output.size_in_bytes() != 0) {
      std::memcpy(output.data(), result.GetTensorRawData(), output.size_in_bytes());
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

std::string RuntimeVersion() {
  return std::string("ONNX Runtime ") + OrtGetApiBase()->GetVersionString();
}

}  // namespace model_runner

#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model_runner/description.h"
#include "model_runner/tensor.h"

namespace model_runner {

struct ModelOptions {
  // The project's folder, which holds the model.
  std::filesystem::path folder;
  // Another model or engine with the same inputs and outputs; empty for the project's own.
  std::filesystem::path model;
  // ONNX Runtime: "cpu", "cuda", "tensorrt", or the full name of an execution provider.
  std::string provider = "cpu";
  std::map<std::string, std::string> provider_options;
  // ONNX Runtime: threads within an operator; 0 lets ONNX Runtime choose.
  int threads = 0;
  // TensorRT: the GPU.
  int device = 0;
};

// A loaded model, ready to run. Not for several threads at a time.
class Model {
 public:
  // Throws std::runtime_error if the model does not load, or has other inputs or outputs than
  // DescribeModel() returns.
  explicit Model(const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Returns the outputs in the order of DescribeModel().outputs, for inputs in the order of its
  // inputs. Throws std::invalid_argument for an input of another element type or shape.
  std::vector<Tensor> Run(const std::vector<Tensor>& inputs);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Checks the inputs of a run. Throws std::invalid_argument naming the input.
void CheckInputs(const std::vector<Tensor>& inputs);

// Name and version of the runtime, such as "ONNX Runtime 1.22.0".
std::string RuntimeVersion();

}  // namespace model_runner

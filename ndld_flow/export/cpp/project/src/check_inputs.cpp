#include "model_runner/model.h"

namespace model_runner {

void CheckInputs(const std::vector<Tensor>& inputs) {
  const std::vector<InputInfo>& expected = DescribeModel().inputs;
  if (inputs.size() != expected.size()) {
    throw std::invalid_argument("the model has " + std::to_string(expected.size()) +
                                " inputs, not " + std::to_string(inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorInfo& tensor = expected[i].tensor;
    if (inputs[i].dtype() != tensor.dtype || !tensor.Accepts(inputs[i].shape())) {
      throw std::invalid_argument("input \"" + Visible(tensor.name) + "\" is " +
                                  NameOf(tensor.dtype) + " " + tensor.ShapeText() + ", not " +
                                  NameOf(inputs[i].dtype()) + " " + TextOf(inputs[i].shape()));
    }
  }
}

}  // namespace model_runner

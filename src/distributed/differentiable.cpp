#include "distributed/differentiable.h"

#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include "distributed/collectives.h"

namespace heed::distributed::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// What a backward pass needs to communicate.
struct Call : torch::CustomClassHolder {
  Call(ProcessGroup group, std::string operation)
      : group(std::move(group)), operation(std::move(operation)) {}
  ProcessGroup group;
  std::string operation;
};

void save(AutogradContext* context, const ProcessGroup& group, const std::string& operation) {
  context->saved_data["call"] =
      c10::IValue::make_capsule(c10::make_intrusive<Call>(group, "gradient of " + operation));
}

struct GatherStack : public torch::autograd::Function<GatherStack> {
  static Variable forward(AutogradContext* context, const Variable& tensor,
                          const ProcessGroup& group, const std::string& operation) {
    save(context, group, operation);
    return at::stack(all_gather(group, operation, tensor));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    const auto sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    all_reduce(call.group, call.operation, sum);
    return {sum[call.group->getRank()], {}, {}};
  }
};

struct AllToAll : public torch::autograd::Function<AllToAll> {
  static Variable forward(AutogradContext* context, const Variable& tensor,
                          const ProcessGroup& group, const std::string& operation) {
    save(context, group, operation);
    return exchange(group, operation, tensor.contiguous());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const Call&>(*capsule);
    return {exchange(call.group, call.operation, gradients[0].contiguous()), {}, {}};
  }
};

}  // namespace

at::Tensor gather_stack(const at::Tensor& tensor, const ProcessGroup& group,
                        const std::string& operation) {
  return GatherStack::apply(tensor, group, operation);
}

at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                      const std::string& operation) {
  return AllToAll::apply(tensor, group, operation);
}

}  // namespace heed::distributed::detail

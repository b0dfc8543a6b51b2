// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/differentiable.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "distributed/collectives.h"

namespace heed::distributed::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The arguments of a collective besides its tensor. Operations that use no dimension ignore
/// `dim`.
struct Call : torch::CustomClassHolder {
  Call(ProcessGroup group, std::string operation, int64_t dim)
      : group(std::move(group)), operation(std::move(operation)), dim(dim) {}

  ProcessGroup group;
  std::string operation;
  int64_t dim;
};

using CallPtr = c10::intrusive_ptr<Call>;
using Collective = at::Tensor (*)(const at::Tensor& x, const Call& call);

CallPtr make_call(const ProcessGroup& group, const std::string& operation, int64_t dim = 0) {
  return c10::make_intrusive<Call>(group, operation, dim);
}

void save(AutogradContext* context, const CallPtr& call) {
  context->saved_data["call"] = c10::IValue::make_capsule(call);
}

CallPtr call_of_gradient(const AutogradContext* context) {
  const auto capsule = context->saved_data.at("call").toCapsule();
  const auto& call = static_cast<const Call&>(*capsule);
  return make_call(call.group, "gradient of " + call.operation, call.dim);
}

at::Tensor same(const at::Tensor& x, const Call& /*call*/) { return x.view_as(x); }

at::Tensor summed(const at::Tensor& x, const Call& call) {
  auto sum = x.detach().clone(at::MemoryFormat::Contiguous);
  all_reduce(call.group, call.operation, sum);
  return sum;
}

at::Tensor own_part(const at::Tensor& x, const Call& call) {
  const auto size = x.size(call.dim) / call.group->getSize();
  return x.narrow(call.dim, call.group->getRank() * size, size).clone(at::MemoryFormat::Contiguous);
}

at::Tensor joined(const at::Tensor& x, const Call& call) {
  return at::cat(all_gather(call.group, call.operation, x), call.dim);
}

at::Tensor own_part_of_sum(const at::Tensor& x, const Call& call) {
  return reduce_scatter(call.group, call.operation, x, call.dim);
}

at::Tensor exchanged(const at::Tensor& x, const Call& call) {
  return exchange(call.group, call.operation, x.contiguous());
}

/// Two collectives, each of which computes the other's gradient.
template <Collective Forward, Collective Backward>
struct Pair : public torch::autograd::Function<Pair<Forward, Backward>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const CallPtr& call) {
    save(context, call);
    return run_exchange(call->group, call->operation, [&] { return Forward(x, *call); });
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {Pair<Backward, Forward>::apply(gradients[0], call_of_gradient(context)), {}};
  }
};

/// The autograd function of sum_gradient_of_copies.
struct Copies : public torch::autograd::Function<Copies> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorShard& shard,
                            const CallPtr& call) {
    save(context, call);
    context->saved_data["shard"] =
        std::vector<int64_t>{shard.dim, shard.first, shard.size, shard.whole};
    return x.view_as(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto shard = context->saved_data["shard"].toIntVector();
    const auto dim = shard[0], first = shard[1], size = shard[2], whole = shard[3];
    // Each gradient gets zeros where other processes have other parts, and all are summed: so no
    // group for each set of copies is needed.
    std::vector<int64_t> padding(static_cast<size_t>(2 * gradients[0].dim()));
    const auto place = static_cast<size_t>(2 * (gradients[0].dim() - 1 - dim));
    padding[place] = first;
    padding[place + 1] = whole - first - size;
    const auto call = call_of_gradient(context);
    const auto sum =
        sum_parts(at::constant_pad_nd(gradients[0], padding), call->group, call->operation);
    return {sum.narrow(dim, first, size), {}, {}};
  }
};

}  // namespace

at::Tensor sum_parts(const at::Tensor& x, const ProcessGroup& group, const std::string& operation) {
  return Pair<summed, same>::apply(x, make_call(group, operation));
}

at::Tensor sum_for_losses(const at::Tensor& x, const ProcessGroup& group,
                          const std::string& operation) {
  return Pair<summed, summed>::apply(x, make_call(group, operation));
}

at::Tensor sum_gradient(const at::Tensor& x, const ProcessGroup& group,
                        const std::string& operation) {
  return Pair<same, summed>::apply(x, make_call(group, operation));
}

at::Tensor sum_and_split(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                         const std::string& operation) {
  return Pair<own_part_of_sum, joined>::apply(x, make_call(group, operation, dim));
}

at::Tensor gather_for_parts(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                            const std::string& operation) {
  return Pair<joined, own_part_of_sum>::apply(x, make_call(group, operation, dim));
}

at::Tensor split(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                 const std::string& operation) {
  return Pair<own_part, joined>::apply(x, make_call(group, operation, dim));
}

at::Tensor gather(const at::Tensor& x, int64_t dim, const ProcessGroup& group,
                  const std::string& operation) {
  return Pair<joined, own_part>::apply(x, make_call(group, operation, dim));
}

at::Tensor sum_gradient_of_copies(const at::Tensor& x, const TensorShard& shard,
                                  const ProcessGroup& group, const std::string& operation) {
  return Copies::apply(x, shard, make_call(group, operation));
}

at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group,
                      const std::string& operation) {
  return Pair<exchanged, exchanged>::apply(tensor, make_call(group, operation));
}

}  // namespace heed::distributed::detail

#include "ops/attend_call.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace heed::detail {

void read_shared_options(Arguments& arguments, AttendOptions& options) {
  using Tensor = std::optional<at::Tensor>;
  options.causal(arguments.next<bool>());
  options.window(arguments.next<std::optional<int64_t>>());
  options.dropout(arguments.next<double>());
  options.scale(arguments.next<std::optional<double>>());
  options.softcap(arguments.next<std::optional<double>>());
  options.alibi_slopes(arguments.next<Tensor>());
  options.sinks(arguments.next<Tensor>());
}

std::string attend_arguments() {
  return fmt::format(
      "Tensor query, Tensor key, Tensor value, *, Tensor? mask=None, Tensor? bias=None, {}, "
      "Tensor? documents=None, Tensor? key_documents=None",
      kSharedOptions);
}

AttendCall read_attend(Arguments& arguments) {
  using Tensor = std::optional<at::Tensor>;
  AttendCall call;
  call.query = arguments.next<at::Tensor>();
  call.key = arguments.next<at::Tensor>();
  call.value = arguments.next<at::Tensor>();
  auto& options = call.options;
  options.mask(arguments.next<Tensor>());
  options.bias(arguments.next<Tensor>());
  read_shared_options(arguments, options);
  options.documents(arguments.next<Tensor>());
  options.key_documents(arguments.next<Tensor>());
  return call;
}

variable_list differentiable_tensors(const AttendCall& call) {
  variable_list tensors = {call.query, call.key, call.value};
  if (call.options.bias()) tensors.push_back(*call.options.bias());
  if (call.options.sinks()) tensors.push_back(*call.options.sinks());
  return tensors;
}

at::Tensor by_token(const at::Tensor& output) {
  const auto sizes = output.sizes(), strides = output.strides();
  int64_t dense = 1;
  bool lies_so = true;
  for (const auto dim : {3, 1, 2, 0}) {
    lies_so = lies_so && (strides[dim] == dense || sizes[dim] == 1);
    dense *= sizes[dim];
  }
  return lies_so ? output : output.transpose(1, 2).contiguous().transpose(1, 2);
}

at::Tensor empty_by_token(const at::Tensor& query, const at::Tensor& value) {
  return at::empty_symint(
             {query.sym_size(0), query.sym_size(2), query.sym_size(1), value.sym_size(3)},
             query.options())
      .transpose(1, 2);
}

}  // namespace heed::detail

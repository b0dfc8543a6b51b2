// SPDX-License-Identifier: BSD-3-Clause
#include "ops/attend_call.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <variant>
#include <vector>

#include "core/attend_checks.h"
#include "core/checks.h"

namespace heed::detail {

namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalInteger = std::optional<int64_t>;
using OptionalReal = std::optional<double>;

template <typename T>
using Getter = T& (AttendOptions::*)();
using Option = std::variant<Getter<OptionalTensor>, Getter<OptionalInteger>, Getter<OptionalReal>,
                            Getter<double>, Getter<bool>, Getter<MaskBatch>>;

constexpr Option tensor(Getter<OptionalTensor> option) { return option; }
constexpr Option integer(Getter<OptionalInteger> option) { return option; }

constexpr auto kAttend = static_cast<unsigned>(Taker::attend);
constexpr auto kVarlen = static_cast<unsigned>(Taker::varlen);
constexpr auto kPaged = static_cast<unsigned>(Taker::paged);
constexpr auto kAll = kAttend | kVarlen | kPaged;

struct TakenOption {
  const char* schema;
  unsigned takers;
  Option option;
};

/// The options in the order of the operators' arguments. New ones stand at the end.
constexpr TakenOption kOptions[] = {
    {"Tensor? mask=None", kAttend, tensor(&AttendOptions::mask)},
    {"Tensor? bias=None", kAttend, tensor(&AttendOptions::bias)},
    {"bool causal=False", kAll, Getter<bool>(&AttendOptions::causal)},
    {"SymInt? window=None", kAll, integer(&AttendOptions::window)},
    {"float dropout=0.0", kAttend | kVarlen, Getter<double>(&AttendOptions::dropout)},
    {"float? scale=None", kAll, Getter<OptionalReal>(&AttendOptions::scale)},
    {"float? softcap=None", kAll, Getter<OptionalReal>(&AttendOptions::softcap)},
    {"Tensor? alibi_slopes=None", kAll, tensor(&AttendOptions::alibi_slopes)},
    {"Tensor? sinks=None", kAll, tensor(&AttendOptions::sinks)},
    {"Tensor? documents=None", kAttend, tensor(&AttendOptions::documents)},
    {"Tensor? key_documents=None", kAttend, tensor(&AttendOptions::key_documents)},
    {"SymInt? left_window=None", kAll, integer(&AttendOptions::left_window)},
    {"SymInt? right_window=None", kAll, integer(&AttendOptions::right_window)},
    {"bool top_left=False", kAttend | kVarlen, Getter<bool>(&AttendOptions::top_left)},
    {"Tensor? global_tokens=None", kAttend, tensor(&AttendOptions::global_tokens)},
    {"Tensor? query_lengths=None", kAttend, tensor(&AttendOptions::query_lengths)},
    {"Tensor? key_lengths=None", kAttend, tensor(&AttendOptions::key_lengths)},
    {"str mask_batch=\"each\"", kAttend, Getter<MaskBatch>(&AttendOptions::mask_batch)},
    {"Tensor? relative_bias=None", kAll, tensor(&AttendOptions::relative_bias)},
    {"Tensor? relative_positions=None", kAttend, tensor(&AttendOptions::relative_positions)},
    {"Tensor? parents=None", kPaged, tensor(&AttendOptions::parents)},
    {"Tensor? key_scales=None", kPaged, tensor(&AttendOptions::key_scales)},
    {"Tensor? value_scales=None", kPaged, tensor(&AttendOptions::value_scales)},
};

constexpr const char* kMaskBatches[] = {"each", "cycled", "repeated"};

bool takes(Taker taker, const TakenOption& option) {
  return (option.takers & static_cast<unsigned>(taker)) != 0;
}

/// Reads an option of each type.
struct OptionReader {
  Arguments& arguments;
  Integers integers;
  AttendCall& call;

  template <typename T>
  void operator()(Getter<T> option) const {
    (call.options.*option)() = arguments.next<T>();
  }
  void operator()(Getter<OptionalInteger> option) const {
    (call.options.*option)() = read_integer(arguments, integers, call);
  }
  void operator()(Getter<MaskBatch> option) const {
    const auto name = arguments.next<std::string>();
    const auto* found = std::find(std::begin(kMaskBatches), std::end(kMaskBatches), name);
    HEED_CHECK(found != std::end(kMaskBatches),
               "attend: mask_batch ({}) must be each, cycled or repeated", name);
    (call.options.*option)() = static_cast<MaskBatch>(found - std::begin(kMaskBatches));
  }
};

bool has_symbols(AttendCall call) {
  std::vector<at::Tensor> tensors = {call.query, call.key, call.value};
  for (const auto& option : kOptions) {
    if (const auto* getter = std::get_if<Getter<OptionalTensor>>(&option.option)) {
      tensors.push_back((call.options.**getter)().value_or(at::Tensor()));
    }
  }
  return call.has_symbols || has_symbolic_sizes(tensors);
}

}  // namespace

std::string options_schema(Taker taker) {
  std::vector<std::string> options;
  for (const auto& option : kOptions) {
    if (takes(taker, option)) options.emplace_back(option.schema);
  }
  return fmt::format("{}", fmt::join(options, ", "));
}

std::optional<int64_t> read_integer(Arguments& arguments, Integers integers, AttendCall& call) {
  const auto integer = arguments.next<std::optional<c10::SymInt>>();
  if (!integer) return {};
  if (integers == Integers::known) return integer->guard_int(__FILE__, __LINE__);
  const auto known = integer->maybe_as_int();
  call.has_symbols = call.has_symbols || !known;
  return known;
}

void read_options(Arguments& arguments, Taker taker, Integers integers, AttendCall& call) {
  for (const auto& option : kOptions) {
    if (takes(taker, option)) std::visit(OptionReader{arguments, integers, call}, option.option);
  }
}

std::string attend_arguments() {
  return fmt::format("Tensor query, Tensor key, Tensor value, *, {}",
                     options_schema(Taker::attend));
}

AttendCall read_attend(Arguments& arguments, Integers integers) {
  AttendCall call;
  for (auto* tensor : {&call.query, &call.key, &call.value}) *tensor = arguments.next<at::Tensor>();
  read_options(arguments, Taker::attend, integers, call);
  return call;
}

void check_known(const char* function, const AttendCall& call) {
  if (!has_symbols(call)) {
    return check_attend(function, call.query, call.key, call.value, call.options);
  }
  check_rank(function, "query", call.query, 4);
  check_rank(function, "key", call.key, 4);
  check_rank(function, "value", call.value, 4);
  check_score_options(function, call.options);
}

DifferentiableTensors differentiable_tensors(AttendCall& call) {
  auto& options = call.options;
  const auto given = [](OptionalTensor& option) {
    return option && option->defined() ? &*option : nullptr;
  };
  return {&call.query,
          &call.key,
          &call.value,
          given(options.bias()),
          given(options.sinks()),
          given(options.relative_bias()),
          given(options.alibi_slopes())};
}

CallToRecord to_record(AttendCall call) {
  CallToRecord found{{}, call.options.dropout()};
  for (const auto* tensor : differentiable_tensors(call)) {
    if (tensor != nullptr) found.inputs.push_back(*tensor);
  }
  return found;
}

c10::List<bool> requiring(AttendCall call) {
  const c10::List<bool> found;  // const, but refers to a list that changes
  for (const auto* tensor : differentiable_tensors(call)) {
    found.push_back(tensor != nullptr && tensor->requires_grad());
  }
  return found;
}

std::string wanted_schema() {
  const std::vector<const char*> all(kGradientTensors, "True");
  return fmt::format("bool[{}] wanted=[{}]", all.size(), fmt::join(all, ", "));
}

std::string gradients_schema() {
  std::vector<std::string> results;
  results.reserve(kGradientTensors);
  for (const auto* name : kGradientNames) {
    results.push_back(fmt::format("Tensor {}_gradient", name));
  }
  return fmt::format("{}", fmt::join(results, ", "));
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

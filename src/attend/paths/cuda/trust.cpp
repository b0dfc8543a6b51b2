// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/cuda/trust.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "attend/paths/paths.h"
#include "attend/sequences.h"
#include "core/lack_of_memory.h"
#include "core/random_state.h"

namespace heed::detail {

namespace {

constexpr auto kVariable = "HEED_CUDA_ROUTES";

bool has_bias_gradient(const Problem& problem) {
  return problem.needs_grad() && problem.bias.defined() && problem.bias.requires_grad();
}

/// The properties of a call by which uses of a kernel differ. Warnings name some of them.
struct Trait {
  const char* name;  // or null
  bool (*has)(const Problem& problem);
};
constexpr Trait kTraits[] = {
    {"causal", [](const Problem& p) { return p.causal; }},
    {"window", [](const Problem& p) { return p.has_window(); }},
    {"mask or bias", [](const Problem& p) { return p.has_scores(); }},
    {"sinks", [](const Problem& p) { return p.sinks.defined(); }},
    {"grouped", [](const Problem& p) { return p.heads() != p.groups(); }},
    {"packed", [](const Problem& p) { return p.packed() != nullptr; }},
    {"key lengths", [](const Problem& p) { return p.padded() != nullptr; }},
    {"documents", [](const Problem& p) { return p.documents.defined(); }},
    {"dropout", [](const Problem& p) { return p.dropout > 0.0; }},
    {"gradients", [](const Problem& p) { return p.needs_grad(); }},
    {nullptr, [](const Problem& p) { return p.left_window.has_value(); }},
    {nullptr, [](const Problem& p) { return p.right_window.has_value(); }},
    {nullptr, [](const Problem& p) { return has_bias_gradient(p); }},
    {nullptr, [](const Problem& p) { return p.packed() && p.packed()->same_offsets; }},
    {nullptr, [](const Problem& p) { return p.padded() && p.padded()->query_lengths.defined(); }},
    {nullptr, [](const Problem& p) { return p.wanted == Wanted::output_and_lse; }},
    {nullptr, [](const Problem& p) { return p.query_length() == 1; }},
    {nullptr, [](const Problem& p) { return p.query_length() < p.key_length(); }},
    {nullptr, [](const Problem& p) { return p.query_length() > p.key_length(); }},
};

/// A bit for each trait.
int64_t traits_of(const Problem& problem) {
  int64_t traits = 0;
  for (const auto& trait : kTraits) traits = traits << 1 | int64_t{trait.has(problem)};
  return traits;
}

std::string name_of(Kernel kernel) { return kernel == Kernel::flash ? "flash" : "efficient"; }

/// Describes a use for warnings: "flash (Half, head dims 64 and 64, causal) on cuda:0".
std::string description(Kernel kernel, const Problem& problem) {
  std::string text = fmt::format("{} ({}, head dims {} and {}", name_of(kernel),
                                 c10::toString(problem.query.scalar_type()), problem.head_dim(),
                                 problem.value_head_dim());
  for (const auto& [name, has] : kTraits) {
    if (name != nullptr && has(problem)) text += fmt::format(", {}", name);
  }
  return text + fmt::format(") on {}", problem.query.device().str());
}

/// A tensor of numbers in [-1, 1], made without random numbers: sin(0.7 i + phase).
at::Tensor wave(at::IntArrayRef sizes, const at::TensorOptions& options, double phase) {
  const auto count = c10::multiply_integers(sizes);
  return at::arange(count, options.dtype(at::kFloat))
      .mul_(0.7)
      .add_(phase)
      .sin_()
      .view(sizes)
      .to(c10::typeMetaToScalarType(options.dtype()));
}

at::Tensor integers(const std::vector<int64_t>& values, const Problem& problem) {
  return at::tensor(values, at::kLong).to(problem.query.device());
}

/// Gives the small problem packed or padded sequences or documents, if the problem has them.
void add_sequences(Problem& small, const Problem& problem) {
  if (const auto* given = problem.packed()) {
    const bool same = given->same_offsets;
    const auto offsets = [&](const std::vector<int64_t>& ends) {
      return integers(ends, problem).to(at::kInt);
    };
    const bool enough = given->has_enough_keys();
    // The second sequence has keys but no queries. Unless all sequences have enough keys, the
    // first has fewer keys than queries, and the third has none.
    const auto queries = enough ? offsets({0, 7, 7, 40}) : offsets({0, 7, 7, 9, 40});
    const auto keys = same     ? queries
                      : enough ? offsets({0, 9, 12, 72})
                               : offsets({0, 2, 20, 20, 72});
    small.sequences =
        PackedSequences{queries, keys, {}, 33, small.key_length(), same, given->enough_keys};
  }
  if (const auto* given = problem.padded()) {
    const bool fewer = given->query_lengths.defined();
    const auto fewer_keys = given->enough_keys ? std::max<int64_t>(29, small.query_length()) : 29;
    small.sequences =
        PaddedSequences{fewer ? integers({small.query_length(), 1}, problem) : at::Tensor(),
                        integers({small.key_length(), fewer_keys}, problem), given->enough_keys};
  }
  if (problem.documents.defined()) {
    small.documents = at::arange(small.query_length(), problem.query.options().dtype(at::kLong))
                          .div(13, "floor")
                          .unsqueeze(0);
    small.key_documents = small.documents;
  }
}

/// A call with the same traits as the problem and small lengths.
Problem small_problem(const Problem& problem) {
  const auto* packed = problem.packed();
  const auto length = problem.query_length(), key_length = problem.key_length();
  const int64_t batch = packed ? 1 : 2, groups = 2;
  const int64_t heads = problem.heads() == problem.groups() ? 2 : 4;
  const int64_t queries = packed ? 40 : length == 1 ? 1 : length > key_length ? 72 : 40;
  const bool more_keys = packed ? !packed->same_offsets : length < key_length;
  const int64_t keys = more_keys ? 72 : 40;
  const auto options = problem.query.options();
  Problem small;
  // The memory order is [B, L, H, D], as in modules.
  small.query = wave({batch, queries, heads, problem.head_dim()}, options, 0.1).transpose(1, 2);
  small.key = wave({batch, keys, groups, problem.head_dim()}, options, 0.2).transpose(1, 2);
  small.value = wave({batch, keys, groups, problem.value_head_dim()}, options, 0.3).transpose(1, 2);
  if (problem.has_scores()) {
    small.bias = wave({batch, heads, queries, keys}, options, 0.4);
    small.bias.select(2, queries - 1).fill_(-std::numeric_limits<double>::infinity());
  }
  if (problem.sinks.defined()) small.sinks = wave({heads}, problem.sinks.options(), 0.5);
  small.causal = problem.causal;
  if (problem.left_window) small.left_window = 8;
  if (problem.right_window) small.right_window = 5;
  small.scale = 1.0 / std::sqrt(static_cast<double>(problem.head_dim()));
  small.wanted = problem.wanted;
  add_sequences(small, problem);
  if (problem.needs_grad()) {
    for (auto member : {&Problem::query, &Problem::key, &Problem::value, &Problem::sinks}) {
      if ((small.*member).defined()) small.*member = (small.*member).detach().requires_grad_();
    }
    if (has_bias_gradient(problem)) small.bias.requires_grad_();
  }
  return small;
}

/// The largest allowed `difference`. Kernels round weights and outputs to half precision, and may
/// compute products of float32 from three products of TF32.
double bound_of(at::ScalarType dtype) {
  constexpr double kRoundings = 8;
  if (dtype == at::kBFloat16) return kRoundings / 256;
  return dtype == at::kHalf ? kRoundings / 2048 : 1e-4;
}

/// The largest difference, divided by the largest expected number if that is above 1; inf for NaN.
double difference(const at::Tensor& actual, const at::Tensor& expected) {
  const auto exact = expected.to(at::kFloat);
  // Equal numbers have the difference 0, also if both are -inf.
  const auto apart =
      (actual.to(at::kFloat) - exact).abs().masked_fill(actual.to(at::kFloat).eq(exact), 0.0);
  const auto scale = exact.abs().masked_fill(exact.isinf(), 0.0).amax().clamp_min(1.0);
  const auto found = (apart.amax() / scale).item<double>();
  return std::isnan(found) ? std::numeric_limits<double>::infinity() : found;
}

/// Whether the backward pass drops the same weights as the forward pass. If so, with output = W V
/// and the gradient dV = W^T dO, the sums of output * dO and of V * dV are equal. Restores the
/// state of the random numbers.
bool drops_alike(Kernel kernel, Problem small, double dropout) {
  small.dropout = dropout;
  const auto run = [&] {
    const auto output = attend_by(kernel, small, Help::none).output;
    const auto of_output = wave(output.sizes(), output.options(), 0.6);
    const auto of_value = torch::autograd::grad({output}, {small.value}, {of_output})[0];
    const auto product = [](const at::Tensor& a, const at::Tensor& b) {
      return (a.detach().to(at::kDouble) * b.detach().to(at::kDouble)).sum().item<double>();
    };
    const auto forward = product(output, of_output), backward = product(small.value, of_value);
    const auto largest = product(output.abs(), of_output.abs());
    return std::abs(forward - backward) <= bound_of(small.query.scalar_type()) * largest;
  };
  return RandomState(small.query.device()).replay(run);
}

/// Describes what is wrong with the kernel's results of the small problem; empty if nothing is.
std::string fault_of(Kernel kernel, const Problem& small, double dropout) {
  const auto bound = bound_of(small.query.scalar_type());
  std::string fault;
  const auto compare = [&](const char* name, const at::Tensor& actual, const at::Tensor& expected) {
    const auto apart = difference(actual, expected);
    if (!fault.empty() || apart <= bound) return;
    fault = fmt::format("{} differs from that of LibTorch's operators by {:.2g}, more than {:.2g}",
                        name, apart, bound);
  };
  auto exact = with_documents(small);
  for (auto member : {&Problem::query, &Problem::key, &Problem::value, &Problem::bias}) {
    if ((exact.*member).defined()) exact.*member = (exact.*member).detach().to(at::kFloat);
  }
  if (exact.sinks.defined()) exact.sinks = exact.sinks.detach();
  const auto attended = attend_by(kernel, small, Help::none);
  const auto expected = math_path::attend(exact);
  compare("the output", attended.output.detach(), expected.output);
  if (attended.lse.defined()) compare("the lse", attended.lse.detach(), expected.lse);
  if (!small.needs_grad()) return fault;
  WantedGradients wanted{};
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& tensor = small.*kProblemTensors[i];
    wanted[i] = tensor.defined() && tensor.requires_grad();
    if (wanted[i]) inputs.push_back(tensor);
  }
  const auto of_output = wave(attended.output.sizes(), attended.output.options(), 0.6);
  const auto found = torch::autograd::grad({attended.output}, inputs, {of_output});
  const auto gradients = math_path::gradients(exact, wanted, of_output.to(at::kFloat), {});
  auto next = found.begin();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) compare("a gradient", *next++, gradients[i]);
  }
  if (fault.empty() && dropout > 0.0 && small.value.requires_grad() &&
      !drops_alike(kernel, small, dropout)) {
    fault = "its backward pass does not drop the weights of its forward pass";
  }
  return fault;
}

/// Whether each use of a kernel was found to be right, and the warnings that were given.
class Findings {
 public:
  using Use = std::array<int64_t, 6>;

  static Findings& instance() {
    static auto* const findings = new Findings;
    return *findings;
  }
  std::optional<bool> find(const Use& use) {
    const std::scoped_lock lock(mutex_);
    const auto found = findings_.find(use);
    return found == findings_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(const Use& use, bool is_right) {
    const std::scoped_lock lock(mutex_);
    findings_.emplace(use, is_right);
  }
  void clear() {
    const std::scoped_lock lock(mutex_);
    findings_.clear();
    warnings_.clear();
  }
  /// Adds a warning. Returns false if it was given before.
  bool is_new(const std::string& warning) {
    const std::scoped_lock lock(mutex_);
    return warnings_.insert(warning).second;
  }

 private:
  std::mutex mutex_;
  std::map<Use, bool> findings_;
  std::set<std::string> warnings_;
};

void warn_once(const std::string& warning) {
  if (Findings::instance().is_new(warning)) {
    TORCH_WARN(warning);
  }
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

bool check_first_use(Kernel kernel, const Problem& problem) {
  std::string fault;
  try {
    fault = fault_of(kernel, small_problem(problem), problem.dropout);
  } catch (const std::exception& error) {
    if (is_lack_of_memory(error)) throw;
    fault = fmt::format("it throws: {}", first_line(error.what()));
  }
  if (fault.empty()) return true;
  warn_once(fmt::format("heed does not use {}: {}", description(kernel, problem), fault));
  return false;
}

}  // namespace

CudaRoutes cuda_routes() {
  const char* const value = std::getenv(kVariable);
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty()) return CudaRoutes::fast;
  if (text == "safe") return CudaRoutes::safe;
  if (text == "verify") return CudaRoutes::verify;
  warn_once(fmt::format("{} ({}) is ignored: it must be safe or verify", kVariable, text));
  return CudaRoutes::fast;
}

bool is_trusted(Kernel kernel, const Problem& problem) {
  if (cuda_routes() == CudaRoutes::safe) return false;
  const Findings::Use use = {static_cast<int64_t>(kernel),
                             problem.query.device().index(),
                             static_cast<int64_t>(problem.query.scalar_type()),
                             problem.head_dim(),
                             problem.value_head_dim(),
                             traits_of(problem)};
  auto& findings = Findings::instance();
  if (const auto found = findings.find(use)) return *found;
  const bool is_right = check_first_use(kernel, problem);
  findings.add(use, is_right);
  return is_right;
}

bool verify(Kernel kernel, const Problem& problem, const char* result, const at::Tensor& actual,
            const at::Tensor& expected) {
  const auto bound = bound_of(problem.query.scalar_type());
  const auto apart = difference(actual.detach(), expected.detach());
  if (apart <= bound) return true;
  warn_once(
      fmt::format("heed: {} by {} differs from that of LibTorch's operators by {:.2g}, more "
                  "than {:.2g}; theirs is used",
                  result, description(kernel, problem), apart, bound));
  return false;
}

void warn_of_refusal(Kernel kernel, const Problem& problem, const c10::Error& error) {
  warn_once(fmt::format("heed: {} throws, LibTorch's operators are used: {}",
                        description(kernel, problem), first_line(error.what_without_backtrace())));
}

void forget_trust() { Findings::instance().clear(); }

}  // namespace heed::detail

// SPDX-License-Identifier: BSD-3-Clause
// Makes the tables of docs/gpu.md: what a GPU is asked to do, as the simulated device counts it.
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <heed/heed.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/every_module.h"
#include "support/simulated_cuda/simulated_cuda.h"

namespace heed::test::device_work {
namespace {

constexpr int kSkipped = 77;  // as CTest is told
const at::Device kDevice(at::kCUDA, 0);

using Results = std::vector<at::Tensor>;
using Work = std::function<Results()>;

/// The work of the second run; the first one checks kernels and fills what is remembered. Memory is
/// counted beside the results.
DeviceWork second_run(const Work& work) {
  work();
  const WorkOfDevice device;
  const auto results = work();
  auto done = device.work();
  std::set<const void*> counted;
  for (const auto& result : results) {
    if (!result.defined() || !counted.insert(result.storage().data()).second) continue;
    done.peak_bytes -= static_cast<int64_t>((result.storage().nbytes() + 511) / 512 * 512);
  }
  return done;
}

std::string bytes(int64_t count) {
  if (count < 1024) return fmt::format("{} B", count);
  const auto kib = static_cast<double>(count) / 1024;
  return kib < 1024 ? fmt::format("{:.1f} KiB", kib) : fmt::format("{:.1f} MiB", kib / 1024);
}

std::string cell(const DeviceWork& work) {
  return fmt::format("{} / {} / {}", work.synchronizations(), work.launches(),
                     bytes(work.peak_bytes));
}

std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

struct CallInputs : Inputs {
  AttendOptions options;
  at::Tensor offsets;  // of eight sequences with L tokens in all
};

/// One kind of call. Sizes in the letters of attend.h; L and S are multiples of the table's length,
/// or 0 for one token.
struct CallKind {
  std::string words;
  at::ScalarType dtype = at::kBFloat16;
  std::function<AttendOptions(int64_t L, int64_t S)> options = [](int64_t, int64_t) {
    return AttendOptions();
  };
  int64_t G = 2, D = 64, Dv = 64, L = 1, S = 1;
  bool inference = true, training = true;
  std::function<at::Tensor(const CallInputs&)> run = [](const CallInputs& in) {
    return attend(in, in.options);
  };
  bool has_path = true;
};

constexpr int64_t kHeads = 2;
constexpr int64_t kLength = 256;

AttendOptions causal() { return AttendOptions().causal(true); }

/// Options that no tensor's size depends on.
std::function<AttendOptions(int64_t, int64_t)> always(const AttendOptions& options) {
  return [options](int64_t, int64_t) { return options; };
}

void add_plain_kinds(std::vector<CallKind>& kinds) {
  const auto windowed = always(causal().window(50));
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    kinds.push_back({"plain", dtype});
    kinds.push_back({"causal", dtype, always(causal())});
  }
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    CallKind longer{"causal, S = 2 L", dtype, always(causal())};
    longer.S = 2;
    kinds.push_back(longer);
    longer.words = "causal, L = 2 S";
    std::swap(longer.L, longer.S);
    kinds.push_back(longer);
    kinds.push_back({"causal, window", dtype, windowed});
    CallKind ahead{"causal, window, S = 2 L", dtype, windowed};
    ahead.S = 2;
    kinds.push_back(ahead);
    kinds.push_back({"window", dtype, always(AttendOptions().window(50))});
    CallKind grouped{"causal, grouped heads", dtype, always(causal())};
    grouped.G = 1;
    kinds.push_back(grouped);
    CallKind decoding{"one query, grouped heads", dtype, always(causal())};
    decoding.G = 1;
    decoding.L = 0;
    decoding.training = false;
    kinds.push_back(decoding);
  }
}

/// [N + 1]: `total` tokens in eight sequences of different lengths.
at::Tensor eight_offsets(int64_t total) {
  return (at::arange(9).square() * total).div(64, "floor").to(at::kLong);
}

at::Tensor attend_packed(const CallInputs& in, bool with_lengths) {
  const auto tokens = [](const at::Tensor& heads) { return heads[0].transpose(0, 1); };
  const auto query = tokens(in.query), key = tokens(in.key), value = tokens(in.value);
  const auto longest = query.size(0) / 4;
  return with_lengths ? attend_varlen(query, key, value, in.offsets, in.offsets, longest, longest,
                                      in.options)
                      : attend_varlen(query, key, value, in.offsets, in.offsets, in.options);
}

void add_packed_kinds(std::vector<CallKind>& kinds) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (const bool with_lengths : {true, false}) {
      CallKind packed{
          with_lengths ? "`attend_varlen` with longest lengths, causal" : "`attend_varlen`, causal",
          dtype, always(causal())};
      packed.has_path = false;
      packed.run = [=](const CallInputs& in) { return attend_packed(in, with_lengths); };
      kinds.push_back(packed);
    }
    kinds.push_back({"documents, causal", dtype, [](int64_t L, int64_t) {
                       return causal().documents(at::arange(L, kDevice).div(50, "floor"));
                     }});
  }
}

void add_scored_kinds(std::vector<CallKind>& kinds) {
  const auto slopes = alibi_slopes(kHeads).to(kDevice);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const auto sinks = at::rand({kHeads}).to(kDevice).to(dtype);
    kinds.push_back({"mask [L, S]", dtype, [](int64_t L, int64_t S) {
                       return AttendOptions().mask((at::rand({L, S}) < 0.7).to(kDevice));
                     }});
    kinds.push_back(
        {"padding mask [1, 1, 1, S]", dtype, [](int64_t, int64_t S) {
           return AttendOptions().mask((at::arange(S) < S / 2).to(kDevice).view({1, 1, 1, S}));
         }});
    kinds.push_back(
        {"bias [1, H, L, S]", dtype, [dtype](int64_t L, int64_t S) {
           return AttendOptions().bias(at::rand({1, kHeads, L, S}).to(kDevice).to(dtype));
         }});
    kinds.push_back({"sinks", dtype, always(causal().sinks(sinks))});
    kinds.push_back({"sinks, window", dtype, always(causal().window(50).sinks(sinks))});
    kinds.push_back({"softcap", dtype, always(causal().softcap(20.0))});
    kinds.push_back({"ALiBi", dtype, always(causal().alibi_slopes(slopes))});
  }
}

void add_sized_kinds(std::vector<CallKind>& kinds) {
  const auto sized = [&](const char* words, at::ScalarType dtype, int64_t D, int64_t Dv) {
    CallKind kind{words, dtype, always(causal())};
    kind.D = D;
    kind.Dv = Dv;
    kinds.push_back(kind);
  };
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    sized("Dv ≠ D: 192 and 128", dtype, 192, 128);
    sized("D = 36", dtype, 36, 36);
    sized("D = 35", dtype, 35, 35);
    sized("D = 320", dtype, 320, 320);
  }
}

void add_random_kinds(std::vector<CallKind>& kinds) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (const bool with_window : {false, true}) {
      auto options = causal().dropout(0.1);
      if (with_window) options.window(50);
      CallKind kind{with_window ? "dropout, window" : "dropout", dtype, always(options)};
      kind.inference = false;
      kinds.push_back(kind);
    }
    CallKind with_lse{"`attend_with_lse`, causal", dtype, always(causal())};
    with_lse.has_path = false;
    with_lse.run = [](const CallInputs& in) {
      return std::get<0>(attend_with_lse(in, in.options));
    };
    kinds.push_back(with_lse);
    CallKind weights{"`attend_with_weights`, causal", dtype, always(causal())};
    weights.has_path = false;
    weights.run = [](const CallInputs& in) {
      return std::get<0>(attend_with_weights(in, in.options));
    };
    kinds.push_back(weights);
  }
}

std::vector<CallKind> call_kinds() {
  std::vector<CallKind> kinds;
  add_plain_kinds(kinds);
  add_packed_kinds(kinds);
  add_scored_kinds(kinds);
  add_sized_kinds(kinds);
  add_random_kinds(kinds);
  return kinds;
}

CallInputs inputs_of(const CallKind& kind, int64_t length, bool training) {
  const Sizes sizes{1,      kHeads, kind.G, std::max<int64_t>(kind.L * length, 1), kind.S * length,
                    kind.D, kind.Dv};
  const auto heads = make_inputs(sizes, at::device(kDevice).dtype(kind.dtype));
  for (const auto& tensor : {heads.query, heads.key, heads.value}) tensor.requires_grad_(training);
  return {heads, kind.options(sizes.L, sizes.S), eight_offsets(sizes.L).to(kDevice)};
}

DeviceWork work_of(const CallKind& kind, int64_t length, bool training) {
  const at::AutoGradMode grad(training);
  const auto inputs = inputs_of(kind, length, training);
  if (!training) return second_run([&] { return Results{kind.run(inputs)}; });
  const auto output_gradient = at::randn_like(kind.run(inputs));
  return second_run([&] {
    const auto output = kind.run(inputs);
    auto results = torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value},
                                         {output_gradient});
    results.push_back(output);
    return results;
  });
}

/// The operators of attention among those that ran. SDPA's run others of these.
std::string kernels(const DeviceWork& work) {
  static const std::vector<std::pair<std::string, std::string>> kNames = {
      {"aten::_scaled_dot_product_flash_attention", "SDPA's flash"},
      {"aten::_scaled_dot_product_efficient_attention", "SDPA's efficient"},
      {"aten::_flash_attention_forward", "flash"},
      {"aten::_efficient_attention_forward", "efficient"}};
  const auto count_of = [&](const std::string& name) {
    const auto found = work.operators.find(name);
    return found == work.operators.end() ? int64_t{0} : found->second;
  };
  std::vector<std::string> names;
  for (const auto& [name, words] : kNames) {
    auto count = count_of(name);
    if (words == "flash") count -= count_of(kNames[0].first);
    if (words == "efficient") count -= count_of(kNames[1].first);
    if (count == 1) names.push_back(words);
    if (count > 1) names.push_back(fmt::format("{} × {}", count, words));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Undefined where the call is not one of `attend`.
std::optional<AttendPath> path_of(const CallKind& kind) {
  if (!kind.has_path) return std::nullopt;
  const auto in = inputs_of(kind, kLength, /*training=*/!kind.inference);
  return attend_path(in, in.options);
}

/// With how much memory grows where L and S double, unless it is that of blocks: these hold all
/// scores of such short sequences at once.
std::string call_cell(const CallKind& kind, bool training, std::string* seen_kernels) {
  try {
    const auto work = work_of(kind, kLength, training);
    if (seen_kernels->empty()) *seen_kernels = kernels(work);
    if (work.peak_bytes <= 0 || path_of(kind) == AttendPath::query_blocks) return cell(work);
    const auto twice = work_of(kind, 2 * kLength, training);
    return fmt::format(
        "{}, × {:.1f}", cell(work),
        static_cast<double>(twice.peak_bytes) / static_cast<double>(work.peak_bytes));
  } catch (const c10::Error& error) {
    return "fails: " + first_line(error);
  }
}

std::string calls_table() {
  std::ostringstream lines;
  lines << "| call | dtype | route | kernels | inference | training |\n|---|---|---|---|---|---|\n";
  for (const auto& kind : call_kinds()) {
    std::string names;
    const auto inference = kind.inference ? call_cell(kind, false, &names) : "";
    const auto training = kind.training ? call_cell(kind, true, &names) : "";
    const auto path = path_of(kind);
    const auto route = path ? fmt::format("`{}`", to_string(*path)) : "";
    lines << fmt::format("| {} | {} | {} | {} | {} | {} |\n", kind.words, c10::toString(kind.dtype),
                         route, names, inference, training);
  }
  return lines.str();
}

struct NoCaches {};

template <typename Module>
auto caches_of(const Module& module, const CacheOptions& options)
    -> decltype(module->make_cache(every_module::B, 16, options)) {
  return module->make_cache(every_module::B, 16, options);
}
template <typename Module>
auto caches_of(const Module& module, const CacheOptions& options)
    -> decltype(module->make_caches(every_module::B, 16, options)) {
  return module->make_caches(every_module::B, 16, options);
}
template <typename Module>
NoCaches caches_of(const Module& /*module*/, ...) {
  return {};
}

/// A prompt, then one token at a time. Empty where the module has no cache for such a call.
template <typename Module>
std::string cached_cell(Module& module, const at::Tensor& x, at::IntArrayRef prompt_lengths,
                        const CacheOptions& options = {}) {
  const at::NoGradGuard no_grad;
  module->eval();
  auto caches = caches_of(module, options);
  if constexpr (std::is_same_v<decltype(caches), NoCaches>) {
    return "";
  } else {
    try {
      module->forward_cached(x.narrow(1, 0, 5), caches, prompt_lengths);
      const auto token = x.narrow(1, 5, 1);
      return cell(second_run([&] { return Results{module->forward_cached(token, caches)}; }));
    } catch (const c10::ValueError&) {
      return "";  // only causal attention decodes
    } catch (const c10::Error& error) {
      return "fails: " + first_line(error);
    }
  }
}

template <typename Module, typename Call>
std::string forward_cell(Module& module, const at::Tensor& x, const Call& call) {
  const at::NoGradGuard no_grad;
  module->eval();
  try {
    return cell(second_run([&] { return Results{call(module, x)}; }));
  } catch (const c10::Error& error) {
    return "fails: " + first_line(error);
  }
}

template <typename Module, typename Call>
std::string training_cell(Module& module, const at::Tensor& x, const Call& call) {
  module->train();
  const auto input = x.is_floating_point() ? x.detach().clone().requires_grad_() : x;
  try {
    const auto output_gradient = at::randn_like(call(module, input));
    return cell(second_run([&] {
      const auto output = call(module, input);
      torch::autograd::backward({output}, {output_gradient});
      return Results{output};
    }));
  } catch (const c10::Error& error) {
    return "fails: " + first_line(error);
  }
}

std::string modules_table() {
  std::ostringstream lines;
  lines << "| module | forward | training | cached step | lengths differ | fixed shapes |\n"
           "|---|---|---|---|---|---|\n";
  const auto fixed = CacheOptions().fixed_shapes(true);
  every_module::visit_modules([&](const std::string& name, auto module, const at::Tensor& on_host,
                                  const auto& call) {
    module->to(kDevice);
    const auto x = on_host.to(kDevice);
    lines << fmt::format("| {} | {} | {} | {} | {} | {} |\n", name, forward_cell(module, x, call),
                         training_cell(module, x, call), cached_cell(module, x, {}),
                         cached_cell(module, x, {5, 3}), cached_cell(module, x, {5, 3}, fixed));
  });
  return lines.str();
}

struct Table {
  std::string marker, text;
};

std::vector<Table> tables() { return {{"calls", calls_table()}, {"modules", modules_table()}}; }

/// Where the table of this marker stands in the page: position and length.
std::pair<size_t, size_t> place_of(const std::string& page, const std::string& marker) {
  const auto begin = fmt::format("<!-- {}:begin -->\n", marker);
  const auto first = page.find(begin) + begin.size();
  const auto end = page.find(fmt::format("<!-- {}:end -->", marker), first);
  TORCH_CHECK(first >= begin.size() && end != std::string::npos, "the page has no ", begin);
  return {first, end - first};
}

std::string version_line() { return "Made with LibTorch " TORCH_VERSION ".\n\n"; }

std::string read(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "cannot read ", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int write_page(const std::string& path) {
  auto page = read(path);
  for (const auto& table : tables()) {
    const auto [first, length] = place_of(page, table.marker);
    page.replace(first, length, version_line() + table.text);
  }
  std::ofstream(path) << page;
  return EXIT_SUCCESS;
}

int check_page(const std::string& path) {
  const auto page = read(path);
  if (page.find(version_line()) == std::string::npos) {
    std::cout << "The page's tables were made with another LibTorch than " TORCH_VERSION ".\n";
    return kSkipped;
  }
  for (const auto& table : tables()) {
    const auto [first, length] = place_of(page, table.marker);
    if (page.substr(first, length) == version_line() + table.text) continue;
    std::cout << path << " has another table of " << table.marker << "; --write " << path
              << " puts this one there:\n\n"
              << table.text;
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

int main_of(const std::vector<std::string>& arguments) {
  at::manual_seed(0);
  // Another thread would give memory back later.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  if (arguments.size() == 2 && arguments[0] == "--write") return write_page(arguments[1]);
  if (arguments.size() == 2 && arguments[0] == "--check") return check_page(arguments[1]);
  if (!arguments.empty()) {
    std::cout << "usage: device_work [--write PAGE | --check PAGE]\n";
    return EXIT_FAILURE;
  }
  for (const auto& table : tables()) std::cout << table.text << '\n';
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace heed::test::device_work

int main(int argc, char** argv) {
  return heed::test::device_work::main_of({argv + 1, argv + argc});
}

// MultiHeadAttention and GroupQueryAttention, with and without a cache, against their definitions
// in float64: projections, norms and rotations by operators, attention by the reference's loops.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"

namespace heed::fuzz {

namespace {

const Names kMultiHeadNames = {"MultiHeadAttention", "attend", "attend_with_weights",
                               "RotaryEmbedding", "Norm"};
const Names kGroupQueryNames = {"GroupQueryAttention", "attend", "attend_with_weights",
                                "RotaryEmbedding", "Norm"};
const Names kCacheNames = {"GroupQueryAttention", "KVCache", "KVCache::append"};

int64_t width(const Case& c) { return c.E > 0 ? c.E : c.H * c.D; }

/// 0 where there is none.
int64_t head_dim(const Case& c) {
  if (c.head_dim > 0) return c.head_dim == 1 ? c.D : 0;
  return c.H > 0 && width(c) % c.H == 0 ? width(c) / c.H : 0;
}

bool normalises_by_rms(const Case& c) { return c.qk_norm % 2 == 1; }

RotaryEmbeddingOptions rotary_options(const Case& c) {
  RotaryEmbeddingOptions options(c.rotary == 4 ? head_dim(c) + 2 : head_dim(c));
  if (c.rotary == 2) options.pairing(RotaryPairing::interleaved);
  if (c.rotary == 3) options.rotary_dim(2);
  return options;
}

QkNormOptions norm_options(const Case& c) {
  const auto eps = c.qk_norm == 5 ? std::numeric_limits<double>::quiet_NaN() : 1e-6;
  return QkNormOptions()
      .kind(normalises_by_rms(c) ? NormKind::rms_norm : NormKind::layer_norm)
      .eps(eps)
      .after_rotary(c.qk_norm == 3 || c.qk_norm == 4);
}

template <typename Options>
void set_head_options(const Case& c, Options& options) {
  set_score_options(c, options);
  options.input_bias(c.no_input_bias == 0).output_bias(c.no_output_bias == 0);
  if (c.head_dim > 0) options.head_dim(head_dim(c));
  if (c.rotary > 0) options.rotary(rotary_options(c));
  if (c.qk_norm > 0) options.qk_norm(norm_options(c));
  options.alibi(c.alibi > 0).sinks(c.sinks > 0);
}

MultiHeadAttention make_multi_head(const Case& c) {
  MultiHeadAttentionOptions options(width(c), c.H);
  set_head_options(c, options);
  if (c.key_dim > 0) options.key_emb_dim(c.key_dim);
  if (c.value_dim > 0) options.value_emb_dim(c.value_dim);
  if (c.Dv != c.D) options.value_head_dim(c.Dv);
  return MultiHeadAttention(options);
}

GroupQueryAttention make_group_query(const Case& c) {
  GroupQueryAttentionOptions options(width(c), c.H, c.G);
  set_head_options(c, options);
  return GroupQueryAttention(options);
}

bool has_valid_module_options(const Case& c) {
  AttendOptions options;
  set_score_options(c, options);
  const auto D = head_dim(c);
  const bool rotates = c.rotary == 0 || (c.rotary <= 3 && (c.rotary == 3 ? D >= 2 : D % 2 == 0));
  const bool grouped = c.target == kMultiHead || (c.G >= 1 && c.H % c.G == 0);
  const bool values = c.target != kMultiHead || c.Dv == c.D || c.Dv >= 1;
  return width(c) >= 1 && c.H >= 1 && D >= 1 && grouped && values && are_in_range(options) &&
         rotates && c.qk_norm <= 4;
}

/// In the case's dtype where a module can have it, with norms and sinks that are not as at first.
template <typename Module>
void prepare(const Case& c, Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module->named_parameters()) {
    if (item.key().rfind("fc_", 0) != 0) {
      item.value().add_(0.3 * test::uniform(item.value().sizes(), at::kFloat));
    }
  }
  if (c.dtype < 4) module->to(dtype_of(c.dtype));
  module->train(c.training != 0);
}

const torch::nn::Linear& output_of(const MultiHeadAttention& module) { return module->fc_out; }
const torch::nn::Linear& output_of(const GroupQueryAttention& module) { return module->fc_o; }
int64_t groups_of(const MultiHeadAttention& module) { return module->options.head_nums(); }
int64_t groups_of(const GroupQueryAttention& module) { return module->options.group_num(); }

struct Sources {
  at::Tensor query, key, value;
};

/// Heads in float64, and how much their normalisation enlarges an error.
struct Heads64 {
  test::Inputs heads;
  double gain = 1.0;
};

at::Tensor normalise(const Case& c, const Norm& norm, const at::Tensor& x, double& gain) {
  const auto centred = normalises_by_rms(c) ? x : x - x.mean(-1, /*keepdim=*/true);
  const auto size = (centred.square().mean(-1, /*keepdim=*/true) + 1e-6).sqrt();
  if (size.numel() > 0) gain = std::max(gain, 1.0 / size.min().item<double>());
  const auto result = centred / size * norm->weight.to(at::kDouble);
  return norm->bias.defined() ? result + norm->bias.to(at::kDouble) : result;
}

/// x [B, H, L, D], the last query at position `last`; pair i turns by position * 10000^(-2 i / R).
at::Tensor rotate(const Case& c, const at::Tensor& x, int64_t last) {
  const auto D = x.size(3), R = c.rotary == 3 ? 2 : D, L = x.size(2);
  const auto pairs = at::arange(R / 2);
  const auto first = c.rotary == 2 ? pairs * 2 : pairs;
  const auto second = c.rotary == 2 ? pairs * 2 + 1 : pairs + R / 2;
  const auto positions = at::arange(last + 1 - L, last + 1, at::kDouble).unsqueeze(1);
  const auto angles = positions * at::pow(10000.0, pairs.to(at::kDouble) * (-2.0 / R));
  const auto a = x.index_select(3, first), b = x.index_select(3, second);
  const auto turned = at::cat({a * angles.cos() - b * angles.sin(),
                               b * angles.cos() + a * angles.sin(), x.narrow(3, R, D - R)},
                              3);
  const auto order = at::cat({first, second, at::arange(R, D)}).argsort();
  return turned.index_select(3, order);
}

template <typename Module>
Heads64 heads_of(const Case& c, const Module& module, const Sources& sources) {
  Heads64 result{
      {test::split_heads(test::linear64(module->fc_q, sources.query), c.H),
       test::split_heads(test::linear64(module->fc_k, sources.key), groups_of(module)),
       test::split_heads(test::linear64(module->fc_v, sources.value), groups_of(module))}};
  auto &query = result.heads.query, &key = result.heads.key;
  const auto norm = [&] {
    query = normalise(c, module->q_norm, query, result.gain);
    key = normalise(c, module->k_norm, key, result.gain);
  };
  const bool after = c.qk_norm == 3 || c.qk_norm == 4;
  const auto last = key.size(2) - 1;
  if (c.qk_norm > 0 && !after) norm();
  if (c.rotary > 0) {
    query = rotate(c, query, last);
    key = rotate(c, key, last);
  }
  if (c.qk_norm > 0 && after) norm();
  return result;
}

/// The authors' slopes: of a power of two, and every second one of the next for what is missing.
/// A module has them in float32, whatever its dtype.
at::Tensor alibi_slopes_of(int64_t heads) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const auto exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) / static_cast<double>(power)
                  : -4.0 * static_cast<double>(2 * (h - power) + 1) / static_cast<double>(power);
    slopes.push_back(std::exp2(exponent));
  }
  return at::tensor(slopes, at::kFloat);
}

template <typename Module>
test::ReferenceInput reference_input(const Case& c, const Module& module, const test::Inputs& heads,
                                     const std::optional<at::Tensor>& mask) {
  AttendOptions options;
  set_score_options(c, options);
  options.mask(mask);
  if (c.alibi > 0) options.alibi_slopes(alibi_slopes_of(c.H));
  if (c.sinks > 0) options.sinks(module->sinks);
  return test::reference_input(heads, options);
}

/// Projections in half precision round queries, keys, values and the output once each; their
/// errors are multiplied by `gain` in a normalisation and by the key's size in a score. float32
/// angles, also a float64 module's, are off by a position's roundoff.
double module_tolerance(const Case& c, at::ScalarType dtype, const Heads64& heads) {
  const auto& [query, key, value] = heads.heads;
  if (query.numel() == 0 || key.numel() == 0) return tolerance(dtype, 0.0);
  const auto largest_of = [](const at::Tensor& x) { return x.abs().max().item<double>(); };
  const auto D = static_cast<double>(query.size(3));
  const auto scale = std::abs(scale_of(c).value_or(1.0 / std::sqrt(D)));
  const auto positions = static_cast<double>(query.size(2) + key.size(2));
  const auto score = scale * D * largest_of(query) * largest_of(key);
  const auto roundoff =
      c.rotary > 0 ? std::max(test::unit_roundoff(dtype), 0x1p-24) : test::unit_roundoff(dtype);
  const auto moved =
      score * (heads.gain + (c.rotary > 0 ? positions : 0.0)) + (c.alibi > 0 ? positions : 0.0);
  return (32.0 + 4.0 * moved) * roundoff * std::max(1.0, largest_of(value));
}

bool is_input(const at::Tensor& input, const torch::nn::Linear& linear) {
  return is_dense(input, 3) && input.scalar_type() == linear->weight.scalar_type() &&
         input.size(2) == linear->weight.size(1);
}

template <typename Module>
bool is_valid(const Case& c, const Module& module, const Sources& sources,
              const std::optional<at::Tensor>& mask) {
  const auto& [query, key, value] = sources;
  return is_input(query, module->fc_q) && is_input(key, module->fc_k) &&
         is_input(value, module->fc_v) && query.size(0) == key.size(0) &&
         key.sizes().slice(0, 2) == value.sizes().slice(0, 2) &&
         (!mask || is_mask(*mask, query.size(0), c.H, query.size(1), key.size(1)));
}

Sources make_sources(const Case& c) {
  const auto dtype = dtype_of(c.dtype);
  const auto query = make_values(c, kQuery, {c.B, c.L, width(c)}, dtype, c.query_layout);
  if (c.cross == 0) return {query, query, query};
  const auto key_dim = c.key_dim > 0 && c.target == kMultiHead ? c.key_dim : width(c);
  const auto value_dim = c.value_dim > 0 && c.target == kMultiHead ? c.value_dim : width(c);
  return {query,
          make_values(c, kKey, {c.B, c.S, key_dim}, dtype_of(c.dtype + c.key_dtype), c.key_layout),
          make_values(c, kValue, {c.B, c.S, value_dim}, dtype_of(c.dtype + c.value_dtype),
                      c.value_layout)};
}

template <typename Module>
void check_input_gradients(const Case& c, const Module& module, const Sources& sources,
                           const Heads64& heads, test::ReferenceInput input,
                           const at::Tensor& output, double allowed) {
  std::vector<at::Tensor> leaves;
  for (const auto& source : {sources.query, sources.key, sources.value}) {
    if (source.requires_grad() && (leaves.empty() || !source.is_same(leaves.front()))) {
      leaves.push_back(source);
    }
  }
  if (leaves.empty() || std::abs(scale_of(c).value_or(1.0)) > 30.0) return;
  const auto output_gradient = test::uniform(output.sizes(), output.scalar_type());
  const auto actual = torch::autograd::grad({output}, leaves, {output_gradient});
  const auto merged =
      output_gradient.to(at::kDouble).matmul(output_of(module)->weight.detach().to(at::kDouble));
  input.output_gradient = test::split_heads(merged, c.H);
  const auto result = test::reference_attention(input);
  const auto expected =
      torch::autograd::grad({heads.heads.query, heads.heads.key, heads.heads.value}, leaves,
                            {result.query_grad, result.key_grad, result.value_grad});
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto name = "gradient of source " + std::to_string(i);
    expect(test::is_finite(actual[i]), name);
    expect(test::is_close(actual[i], expected[i],
                          heads.gain * gradient_tolerance(allowed, expected[i])),
           name);
  }
}

template <typename Module>
void check_output(const Case& c, const Module& module, const Sources& sources,
                  const std::optional<at::Tensor>& mask, const at::Tensor& output,
                  const at::Tensor& weights) {
  const auto dtype = sources.query.scalar_type();
  expect(output.scalar_type() == dtype, "output's dtype is not the input's");
  expect(test::is_finite(output), "output");
  const bool dropped = c.training != 0 && dropout_of(c) > 0.0;
  if (dropped && !weights.defined()) return;
  const auto heads = heads_of(c, module, sources);
  auto input = reference_input(c, module, heads.heads, mask);
  if (dropped) input.kept = weights.detach().ne(0).to(at::kDouble) / (1.0 - dropout_of(c));
  const auto result = test::reference_attention(input);
  const auto allowed = module_tolerance(c, dtype, heads);
  const auto expected = test::linear64(output_of(module), test::merge_heads(result.output));
  expect(test::is_close(output, expected, allowed), "output");
  if (weights.defined()) expect(test::is_close(weights, result.weights, allowed), "weights");
  if (at::GradMode::is_enabled()) {
    check_input_gradients(c, module, sources, heads, input, output, allowed);
  }
}

template <typename Module>
void check_calls(const Case& c, Module& module, const Names& names) {
  prepare(c, module);
  const auto sources = make_sources(c);
  const auto mask = make_mask(c);
  const auto& [query, key, value] = sources;
  const at::AutoGradMode mode(c.inference == 0);
  const bool valid = is_valid(c, module, sources, mask);
  if (c.weights != 0) {
    const auto result = outcome(
        valid, names, [&] { return module->forward_with_weights(query, key, value, mask); });
    if (result) {
      check_output(c, module, sources, mask, std::get<0>(*result), std::get<1>(*result));
    }
    return;
  }
  const auto output = outcome(valid, names, [&] {
    return c.cross != 0 ? module->forward(query, key, value, mask) : module->forward(query, mask);
  });
  if (output) check_output(c, module, sources, mask, *output, {});
}

/// How many tokens of each sequence go in with `part`; none given: all of them.
std::vector<int64_t> draw_counts(const Case& c, int64_t part) {
  if (c.ragged == 0) return {};
  auto counts = draw_lengths(c, part);
  if (c.victim == kOffsets && c.defect == kExtraDim) counts.push_back(0);
  if (c.victim == kOffsets && c.defect >= kLargerDim && !counts.empty()) counts[0] = part + 1;
  return counts;
}

KVCacheOptions cache_options(const Case& c) {
  const auto larger = [&](int64_t dim) {
    return c.victim == kKey && c.defect == kLargerDim + dim ? 1 : 0;
  };
  const auto capacity = c.capacity > 0 ? c.capacity : std::max<int64_t>(c.L + 3, 1);
  KVCacheOptions options(c.B + larger(0), c.G + larger(1), capacity, head_dim(c) + larger(2));
  if (c.cache_window > 0) options.window(window_of(c).value_or(4));
  return options.dtype(dtype_of(c.dtype + c.key_dtype));
}

bool has_valid_cache(const KVCacheOptions& options) {
  const auto window = options.window().value_or(1);
  return options.batch() >= 1 && options.groups() >= 1 && options.head_dim() >= 1 && window >= 1 &&
         options.capacity() >= window && at::isFloatingType(options.dtype());
}

/// Goes on token by token, and keeps what the reference needs to say what should have come out.
class CachedCalls {
 public:
  CachedCalls(const Case& c, GroupQueryAttention module, KVCache cache)
      : c_(c),
        module_(std::move(module)),
        cache_(std::move(cache)),
        tokens_(static_cast<size_t>(c.B)),
        outputs_(static_cast<size_t>(c.B)) {}

  /// False where the cache has no room, or the call is wrong.
  bool append(const at::Tensor& part) {
    const auto length = is_dense(part, 3) ? part.size(1) : 0;
    const auto counts = draw_counts(c_, length);
    const auto before = cache_.lengths();
    const auto output = outcome(is_valid(part, counts), kCacheNames,
                                [&] { return module_->forward(part, cache_, counts); });
    if (!output) {
      expect(cache_.lengths() == before, "a refused call changed the cache");
      return false;
    }
    for (int64_t b = 0; b < c_.B; ++b) {
      const auto count = counts.empty() ? length : counts[static_cast<size_t>(b)];
      tokens_[static_cast<size_t>(b)].push_back(part[b].narrow(0, 0, count));
      outputs_[static_cast<size_t>(b)].push_back((*output)[b].narrow(0, 0, count));
    }
    return true;
  }

  void check_outputs() const {
    for (size_t b = 0; b < tokens_.size() && !tokens_[b].empty(); ++b) {
      const auto x = at::cat(tokens_[b]).unsqueeze(0);
      expect(cache_.lengths()[b] == x.size(1), "the cache has another length");
      const auto heads = heads_of(c_, module_, {x, x, x});
      auto input = reference_input(c_, module_, heads.heads, {});
      input.causal = true;
      const auto attended = test::reference_attention(input).output;
      const auto expected = test::linear64(module_->fc_o, test::merge_heads(attended));
      const auto actual = at::cat(outputs_[b]).unsqueeze(0);
      expect(test::is_finite(actual), "output");
      expect(test::is_close(actual, expected, module_tolerance(c_, x.scalar_type(), heads)),
             "output of sequence " + std::to_string(b));
    }
  }

 private:
  bool is_valid(const at::Tensor& part, const std::vector<int64_t>& counts) const {
    const auto& options = cache_.options();
    if (!is_input(part, module_->fc_q) || part.scalar_type() != options.dtype()) return false;
    if (at::GradMode::is_enabled()) return false;  // the cache would lose the gradient
    const bool fits = part.size(0) == options.batch() && c_.G == options.groups() &&
                      head_dim(c_) == options.head_dim();
    const auto kept = options.window();
    if (!fits || (kept && window_of(c_).value_or(*kept + 1) > *kept)) return false;
    if (!counts.empty() && static_cast<int64_t>(counts.size()) != options.batch()) return false;
    const auto lengths = cache_.lengths();
    for (size_t b = 0; b < lengths.size(); ++b) {
      const auto count = counts.empty() ? part.size(1) : counts[b];
      const auto needed = kept ? std::min(lengths[b], *kept - 1) : lengths[b];
      if (count > part.size(1) || needed + count > options.capacity()) return false;
    }
    return true;
  }

  const Case& c_;
  GroupQueryAttention module_;
  KVCache cache_;
  std::vector<std::vector<at::Tensor>> tokens_, outputs_;  // of each sequence
};

}  // namespace

void check_module(const Case& given) {
  Case c = given;
  if (c.cross == 0) c.S = c.L;
  if (c.target == kMultiHead) {
    auto module =
        outcome(has_valid_module_options(c), kMultiHeadNames, [&] { return make_multi_head(c); });
    if (module) check_calls(c, *module, kMultiHeadNames);
  } else {
    auto module =
        outcome(has_valid_module_options(c), kGroupQueryNames, [&] { return make_group_query(c); });
    if (module) check_calls(c, *module, kGroupQueryNames);
  }
}

void check_cached(const Case& given) {
  Case c = given;
  c.training = 0;
  auto module =
      outcome(has_valid_module_options(c), kGroupQueryNames, [&] { return make_group_query(c); });
  if (!module) return;
  prepare(c, *module);
  const auto options = cache_options(c);
  auto cache = outcome(has_valid_cache(options), kCacheNames, [&] { return KVCache(options); });
  if (!cache) return;
  const at::AutoGradMode mode(c.inference == 0);
  const auto x = make_values(c, kQuery, {c.B, c.L, width(c)}, dtype_of(c.dtype), c.query_layout);
  CachedCalls calls(c, *module, std::move(*cache));
  const bool parts = c.chunk > 0 && is_dense(x, 3);
  for (const auto& part : parts ? x.split(c.chunk, 1) : std::vector<at::Tensor>{x}) {
    if (!calls.append(part)) break;
  }
  calls.check_outputs();
}

}  // namespace heed::fuzz

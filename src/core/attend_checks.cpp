// SPDX-License-Identifier: BSD-3-Clause
#include "core/attend_checks.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "core/checks.h"
#include "core/draft_tree.h"
#include "core/dtypes.h"
#include "core/floating_mask.h"
#include "core/offsets.h"
#include "core/plain.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

/// Advice for errors about tensors that seem to be [B, L, H, D], as in other libraries.
constexpr auto kOtherLayout =
    "; pass transpose(1, 2) of query, key and value if they are [B, L, H, D]";

/// Advice for errors about a mask or bias whose shape has a meaning in other libraries.
std::string shape_advice(const char* name, const at::Tensor& tensor, const ScoreSizes& sizes,
                         bool is_mask) {
  const auto is = [&](at::IntArrayRef other) { return tensor.sizes() == other; };
  const auto batch = sizes.batch, heads = sizes.heads;
  const auto queries = sizes.query_length, keys = sizes.key_length;
  if (is({batch, keys}) && is_mask) {
    return fmt::format(
        "; if it is [B, S], pass key_padding_mask({0}) or, where nonzero hides, "
        "key_padding_mask(from_hidden({0}))",
        name);
  }
  if (is({batch, keys})) return fmt::format("; pass {}.unsqueeze(1) if it is [B, S]", name);
  const auto is_of = [&](int64_t count) {
    return is({count, queries, keys}) || is({count, 1, keys});
  };
  if (is_of(heads)) return fmt::format("; pass {}.unsqueeze(0) if it is [H, L, S]", name);
  if (is_of(batch * heads)) {
    return fmt::format("; pass {}.unflatten(0, {{{}, {}}}) if it is [B * H, L, S]", name, batch,
                       heads);
  }
  const bool is_other_layout = sizes.query.dim() == 4 && tensor.size(-2) == sizes.query.size(1) &&
                               tensor.size(-1) == sizes.key.size(1);
  return is_other_layout ? kOtherLayout : "";
}

/// Checks that a mask or bias is [L, S], [B or 1, L or 1, S] or [B or 1, H or 1, L or 1, S], where
/// B may be a number that divides it if mask_batch is not `each`.
void check_score_shape(const char* function, const char* name, const at::Tensor& tensor,
                       const ScoreSizes& sizes, bool is_mask) {
  const auto rank = tensor.dim();
  HEED_CHECK(rank >= 2 && rank <= 4,
             "{}: {} rank ({}) must be 2 [L, S], 3 [B, L, S] or 4 [B, H, L, S]; {} {}", function,
             name, rank, name, shape(tensor));
  const auto check_dim = [&](int64_t dim, const char* letter, int64_t size, bool may_be_one) {
    const auto actual = tensor.size(dim);
    HEED_CHECK(actual == size || (may_be_one && actual == 1),
               "{}: {} dim {} ({}) must equal {} ({}){}; {} {}, query {}, key {}{}", function, name,
               dim, actual, letter, size, may_be_one ? " or 1" : "", name, shape(tensor),
               shape(sizes.query), shape(sizes.key), shape_advice(name, tensor, sizes, is_mask));
  };
  if (rank >= 3 && sizes.mask_batch == MaskBatch::each) {
    check_dim(0, "B", sizes.batch, /*may_be_one=*/true);
  } else if (rank >= 3) {
    const auto count = tensor.size(0);
    HEED_CHECK(count >= 1 && sizes.batch % count == 0,
               "{}: {} dim 0 ({}) must divide B ({}) with mask_batch; {} {}, query {}, key {}",
               function, name, count, sizes.batch, name, shape(tensor), shape(sizes.query),
               shape(sizes.key));
  }
  if (rank == 4) check_dim(1, "H", sizes.heads, /*may_be_one=*/true);
  check_dim(rank - 2, "L", sizes.query_length, /*may_be_one=*/rank >= 3);
  check_dim(rank - 1, "S", sizes.key_length, /*may_be_one=*/false);
}

/// Checks a tensor of numbers for each head, whose dimension of heads is `dim`.
void check_head_tensor(const char* function, const char* name, const at::Tensor& tensor,
                       const at::Tensor& query, int64_t dim) {
  check_floating(function, name, tensor);
  check_same_device(function, name, tensor, "query", query);
  HEED_CHECK(tensor.size(dim) == query.size(1),
             "{}: {} dim {} ({}) must equal query dim 1 ({}); query {}{}", function, name, dim,
             tensor.size(dim), query.size(1), shape(query),
             query.dim() == 4 && tensor.size(dim) == query.size(2) ? kOtherLayout : "");
}

void check_alibi_slopes(const char* function, const at::Tensor& slopes, const at::Tensor& query) {
  constexpr auto kName = "alibi_slopes";
  check_defined(function, kName, slopes);
  const bool of_batch = query.dim() == 4 && slopes.dim() == 2;
  if (!of_batch) check_rank(function, kName, slopes, 1);
  check_head_tensor(function, kName, slopes, query, slopes.dim() - 1);
  if (of_batch) check_same_dim(function, kName, slopes, "query", query, 0);
}

void check_relative_bias(const char* function, const at::Tensor& bias, const at::Tensor& query) {
  constexpr auto kName = "relative_bias";
  check_defined(function, kName, bias);
  check_rank(function, kName, bias, 2);
  check_head_tensor(function, kName, bias, query, /*dim=*/0);
  HEED_CHECK(bias.size(1) % 2 == 1,
             "{}: {} dim 1 ({}) must be odd: 2 R + 1 numbers for distances from -R to R; {} {}",
             function, kName, bias.size(1), kName, shape(bias));
}

/// Checks a tensor that has an element for each of `length` tokens, [letter] or [B, letter].
void check_tokens_shape(const char* function, const char* name, const at::Tensor& tensor,
                        const char* letter, int64_t length, const ScoreSizes& sizes) {
  check_same_device(function, name, tensor, "query", sizes.query);
  const auto rank = tensor.dim();
  HEED_CHECK((rank == 1 || rank == 2) && tensor.size(rank - 1) == length &&
                 (rank == 1 || tensor.size(0) == sizes.batch),
             "{}: {} {} must have the shape [{}] or [B, {}]; query {}, key {}", function, name,
             shape(tensor), letter, letter, shape(sizes.query), shape(sizes.key));
}

}  // namespace

void check_mask_dtype(const char* function, const char* name, const at::Tensor& mask,
                      bool takes_bias) {
  check_defined(function, name, mask);
  HEED_CHECK(at::isIntegralType(mask.scalar_type(), /*includeBool=*/true),
             "{}: {} dtype ({}) must be Bool or an integer{}", function, name,
             c10::toString(mask.scalar_type()), advice_on_mask(mask, name, takes_bias));
}

void check_mask(const char* function, const char* name, const at::Tensor& mask,
                const ScoreSizes& sizes, bool takes_bias) {
  check_mask_dtype(function, name, mask, takes_bias);
  check_same_device(function, name, mask, "query", sizes.query);
  check_score_shape(function, name, mask, sizes, /*is_mask=*/true);
}

void check_bias(const char* function, const at::Tensor& bias, const ScoreSizes& sizes) {
  check_defined(function, "bias", bias);
  const auto dtype = bias.scalar_type();
  const char* advice = "";
  if (dtype == at::kBool) {
    advice = "; pass it as mask if true shows, or from_hidden(bias) as mask if true hides";
  } else if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    advice =
        "; pass bias.to(at::kFloat) if it is added to the scores, or pass it as mask if nonzero "
        "shows";
  }
  HEED_CHECK(is_attention_dtype(dtype), "{}: bias dtype ({}) must be {}{}", function,
             c10::toString(dtype), attention_dtypes(), advice);
  check_same_device(function, "bias", bias, "query", sizes.query);
  check_score_shape(function, "bias", bias, sizes, /*is_mask=*/false);
}

void check_block_mask(const char* function, const BlockMask& mask, const ScoreSizes& sizes) {
  const auto own = mask.sizes();
  const auto is = [&](size_t dim, int64_t size) { return own[dim] == size; };
  HEED_CHECK((is(0, sizes.batch) || is(0, 1)) && (is(1, sizes.heads) || is(1, 1)) &&
                 is(2, sizes.query_length) && is(3, sizes.key_length),
             "{}: block_mask {} must have the sizes [B or 1, H or 1, L, S]; query {}, key {}",
             function, c10::str(own), shape(sizes.query), shape(sizes.key));
}

void check_documents(const char* function, const AttendOptions& options, const ScoreSizes& sizes) {
  const auto check = [&](const char* name, const at::Tensor& ids, const char* letter,
                         int64_t length) {
    check_defined(function, name, ids);
    check_integer(function, name, ids);
    check_tokens_shape(function, name, ids, letter, length, sizes);
  };
  const auto& documents = options.documents();
  const auto& keys = options.key_documents();
  if (documents) check("documents", *documents, "L", sizes.query_length);
  if (!keys) {
    HEED_CHECK(!documents || sizes.query_length == sizes.key_length,
               "{}: key_documents must be given if L ({}) differs from S ({})", function,
               sizes.query_length, sizes.key_length);
    return;
  }
  HEED_CHECK(documents, "{}: key_documents needs documents", function);
  check("key_documents", *keys, "S", sizes.key_length);
}

void check_sequence_lengths(const char* function, const AttendOptions& options,
                            const ScoreSizes& sizes) {
  const auto check = [&](const char* name, const std::optional<at::Tensor>& lengths,
                         const char* letter, int64_t most) {
    if (!lengths) return;
    check_defined(function, name, *lengths);
    HEED_CHECK(lengths->scalar_type() == at::kLong, "{}: {} dtype ({}) must be Long", function,
               name, c10::toString(lengths->scalar_type()));
    check_same_device(function, name, *lengths, "query", sizes.query);
    HEED_CHECK(lengths->sizes() == at::IntArrayRef({sizes.batch}),
               "{}: {} {} must have the shape [B]; query {}, key {}", function, name,
               shape(*lengths), shape(sizes.query), shape(sizes.key));
    if (!lengths->is_cpu() || !is_unwrapped(*lengths) || !calls_reach_kernels()) return;
    const auto numbers = to_host(*lengths);
    for (size_t b = 0; b < numbers.size(); ++b) {
      HEED_CHECK(numbers[b] >= 0 && numbers[b] <= most,
                 "{}: {}[{}] ({}) must be at least 0 and at most {} ({}); query {}, key {}",
                 function, name, b, numbers[b], letter, most, shape(sizes.query), shape(sizes.key));
    }
  };
  check("query_lengths", options.query_lengths(), "L", sizes.query_length);
  check("key_lengths", options.key_lengths(), "S", sizes.key_length);
}

void check_global_tokens(const char* function, const at::Tensor& tokens, const ScoreSizes& sizes) {
  constexpr auto kName = "global_tokens";
  check_defined(function, kName, tokens);
  HEED_CHECK(tokens.scalar_type() == at::kBool, "{}: {} dtype ({}) must be Bool", function, kName,
             c10::toString(tokens.scalar_type()));
  check_tokens_shape(function, kName, tokens, "S", sizes.key_length, sizes);
}

void check_relative_positions(const char* function, const AttendOptions& options,
                              const ScoreSizes& sizes) {
  constexpr auto kName = "relative_positions";
  const auto& positions = options.relative_positions();
  if (!positions) return;
  HEED_CHECK(options.relative_bias(), "{}: {} needs relative_bias", function, kName);
  check_defined(function, kName, *positions);
  HEED_CHECK(positions->scalar_type() == at::kLong, "{}: {} dtype ({}) must be Long", function,
             kName, c10::toString(positions->scalar_type()));
  check_tokens_shape(function, kName, *positions, "S", sizes.key_length, sizes);
}

void check_scales(const char* function, const std::string& name, const char* tensor_name,
                  const at::Tensor& tensor, const std::optional<at::Tensor>& scales) {
  const auto scales_name = name + "_scales";
  HEED_CHECK(scales, "{}: {} must be given with the other scales", function, scales_name);
  check_defined(function, scales_name.c_str(), *scales);
  HEED_CHECK(tensor.scalar_type() == at::kChar, "{}: {} dtype ({}) must be Char with {}", function,
             tensor_name, c10::toString(tensor.scalar_type()), scales_name);
  HEED_CHECK(scales->scalar_type() == at::kFloat, "{}: {} dtype ({}) must be Float", function,
             scales_name, c10::toString(scales->scalar_type()));
  check_same_device(function, scales_name.c_str(), *scales, tensor_name, tensor);
  HEED_CHECK(scales->sizes() == tensor.sizes().slice(0, tensor.dim() - 1),
             "{}: {} {} must be {} without its last dim {}", function, scales_name, shape(*scales),
             tensor_name, shape(tensor));
  HEED_CHECK(!scales->requires_grad() || !at::GradMode::is_enabled(),
             "{}: {} must not require grad", function, scales_name);
}

void check_draft_options(const char* function, const AttendOptions& options) {
  const char* contradicts = options.mask()            ? "mask"
                            : options.block_mask()    ? "block_mask"
                            : options.documents()     ? "documents"
                            : options.alibi_slopes()  ? "alibi_slopes"
                            : options.right_window()  ? "right_window"
                            : options.top_left()      ? "top_left"
                            : options.query_lengths() ? "query_lengths"
                            : options.key_lengths()   ? "key_lengths"
                            : options.global_tokens() ? "global_tokens"
                            : options.relative_bias() ? "relative_bias"
                                                      : nullptr;
  HEED_CHECK(contradicts == nullptr, "{}: {} must be absent with parents", function, contradicts);
}

void check_draft(const char* function, const at::Tensor& parents, const AttendOptions& options,
                 const ScoreSizes& sizes) {
  check_numbers(function, "parents", parents);
  const auto rank = parents.dim();
  HEED_CHECK((rank == 1 || rank == 2) && parents.size(rank - 1) == sizes.query_length &&
                 (rank == 1 || parents.size(0) == sizes.batch),
             "{}: parents {} must have the shape [L] or [B, L]; query {}, key {}", function,
             shape(parents), shape(sizes.query), shape(sizes.key));
  HEED_CHECK(sizes.query_length <= sizes.key_length,
             "{}: key dim 2 ({}) must be at least query dim 2 ({}) with parents", function,
             sizes.key_length, sizes.query_length);
  check_draft_options(function, options);
  const auto trees = rank == 1 ? parents.unsqueeze(0) : parents;
  const auto numbers = to_host(trees.contiguous().flatten());
  for (int64_t b = 0; b < trees.size(0); ++b) {
    check_parents(function, rank == 1 ? "parents" : fmt::format("parents[{}]", b), 0,
                  at::IntArrayRef(numbers).slice(b * sizes.query_length, sizes.query_length));
  }
}

void check_no_scores(const char* function, const char* why, const AttendOptions& options) {
  HEED_CHECK(!options.mask(), "{}: mask must be absent: {}", function, why);
  HEED_CHECK(!options.block_mask(), "{}: block_mask must be absent: {}", function, why);
  HEED_CHECK(!options.documents() && !options.key_documents(), "{}: documents must be absent: {}",
             function, why);
  HEED_CHECK(!options.bias(), "{}: bias must be absent: sequences differ in shape", function);
  HEED_CHECK(!options.query_lengths() && !options.key_lengths(),
             "{}: query_lengths and key_lengths must be absent: {}", function, why);
  HEED_CHECK(!options.global_tokens(),
             "{}: global_tokens must be absent: sequences differ in shape", function);
  HEED_CHECK(!options.relative_positions(),
             "{}: relative_positions must be absent: sequences differ in shape", function);
}

void check_plain_keys(const char* function, const AttendOptions& options) {
  HEED_CHECK(!options.parents(), "{}: parents must be absent: the tokens are no draft", function);
  HEED_CHECK(
      !has_scales(options),
      "{}: key_scales and value_scales must be absent: pass key * key_scales.unsqueeze(-1), and "
      "value likewise",
      function);
}

void check_tensors(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, int64_t rank, const AttendOptions& options) {
  check_defined(function, "query", query);
  check_defined(function, "key", key);
  check_defined(function, "value", value);
  check_rank(function, "query", query, rank);
  check_rank(function, "key", key, rank);
  check_rank(function, "value", value, rank);
  check_floating(function, "query", query);
  if (has_scales(options)) {
    check_scales(function, "key", "key", key, options.key_scales());
    check_scales(function, "value", "value", value, options.value_scales());
  } else {
    check_same_dtype(function, "key", key, "query", query);
    check_same_dtype(function, "value", value, "query", query);
  }
  check_same_device(function, "key", key, "query", query);
  check_same_device(function, "value", value, "query", query);
  const int64_t length_dim = rank == 4 ? 2 : 0;
  const int64_t head_dim = rank - 1;
  if (rank == 4) {
    check_same_dim(function, "key", key, "query", query, 0);
    check_same_dim(function, "value", value, "key", key, 0);
  }
  check_same_dim(function, "value", value, "key", key, 1);
  check_same_dim(function, "value", value, "key", key, length_dim);
  check_same_dim(function, "key", key, "query", query, head_dim);
  HEED_CHECK(key.size(1) >= 1, "{}: key dim 1 ({}) must be at least 1; key {}", function,
             key.size(1), shape(key));
  const auto is_multiple = [&](int64_t dim) {
    return key.size(dim) >= 1 && query.size(dim) >= 1 && query.size(dim) % key.size(dim) == 0;
  };
  HEED_CHECK(is_multiple(1),
             "{}: query dim 1 ({}) must be a positive multiple of key dim 1 ({}); query {}, key "
             "{}{}",
             function, query.size(1), key.size(1), shape(query), shape(key),
             rank == 4 && is_multiple(2) ? kOtherLayout : "");
  HEED_CHECK(query.size(head_dim) >= 1, "{}: query dim {} ({}) must be at least 1; query {}",
             function, head_dim, query.size(head_dim), shape(query));
}

void check_head_tensors(const char* function, const at::Tensor& query,
                        const AttendOptions& options) {
  if (const auto& slopes = options.alibi_slopes()) check_alibi_slopes(function, *slopes, query);
  if (const auto& sinks = options.sinks()) {
    check_defined(function, "sinks", *sinks);
    check_rank(function, "sinks", *sinks, 1);
    check_head_tensor(function, "sinks", *sinks, query, /*dim=*/0);
  }
  if (const auto& bias = options.relative_bias()) check_relative_bias(function, *bias, query);
}

void check_score_options(const char* function, const AttendOptions& options) {
  const auto window = options.window();
  if (window) check_positive(function, "window", *window);
  const auto check_side = [&](const char* name, std::optional<int64_t> side) {
    if (!side) return;
    check_not_negative(function, name, *side);
    HEED_CHECK(!window, "{}: {} ({}) must be absent with window ({}), which sets both sides",
               function, name, *side, window.value_or(0));
  };
  check_side("left_window", options.left_window());
  check_side("right_window", options.right_window());
  check_probability(function, "dropout", options.dropout());
  const auto scale = options.scale(), softcap = options.softcap();
  HEED_CHECK(!scale || (std::isfinite(*scale) && *scale != 0.0),
             "{}: scale ({}) must be finite and not 0", function, scale.value_or(0.0));
  HEED_CHECK(!softcap || (std::isfinite(*softcap) && *softcap > 0.0),
             "{}: softcap ({}) must be finite and above 0", function, softcap.value_or(0.0));
}

void check_precision(const char* function, at::ScalarType dtype, const AttendOptions& options) {
  const auto computed_in = compute_dtype(dtype);
  const bool in_double = computed_in == at::kDouble;
  const auto scale = options.scale(), softcap = options.softcap();
  HEED_CHECK(!scale || in_double || std::isfinite(static_cast<float>(*scale)),
             "{}: scale ({}) must be finite in {}", function, scale.value_or(0.0),
             c10::toString(computed_in));
  // Scores are divided by the softcap and then multiplied by it; for gradients, the order is
  // reversed. Neither may overflow or lose digits.
  const double most = in_double ? 1e150 : 1e18;
  HEED_CHECK(!softcap || (*softcap >= 1.0 / most && *softcap <= most),
             "{}: softcap ({}) must be from {} to {} in {}", function, softcap.value_or(0.0),
             1.0 / most, most, c10::toString(computed_in));
}

void check_attend(const char* function, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value, const AttendOptions& options) {
  check_tensors(function, query, key, value, /*rank=*/4, options);
  const ScoreSizes sizes{query,         key,         query.size(0),       query.size(1),
                         query.size(2), key.size(2), options.mask_batch()};
  if (options.mask()) check_mask(function, "mask", *options.mask(), sizes);
  if (options.block_mask()) check_block_mask(function, *options.block_mask(), sizes);
  if (options.bias()) check_bias(function, *options.bias(), sizes);
  check_documents(function, options, sizes);
  check_sequence_lengths(function, options, sizes);
  if (options.global_tokens()) check_global_tokens(function, *options.global_tokens(), sizes);
  check_relative_positions(function, options, sizes);
  if (options.parents()) check_draft(function, *options.parents(), options, sizes);
  check_head_tensors(function, query, options);
  check_score_options(function, options);
  check_precision(function, query.scalar_type(), options);
}

}  // namespace heed::detail

// SPDX-License-Identifier: BSD-3-Clause
#include "attend_call.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "support/inputs.h"
#include "support/layouts.h"

namespace heed::fuzz {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// Dtypes that attend takes come first: random_case counts on it.
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16,    at::kHalf,
                                      at::kLong,  at::kBool,   at::kComplexFloat};
constexpr at::ScalarType kMaskDtypes[] = {at::kBool, at::kLong,  at::kByte,
                                          at::kChar, at::kFloat, at::kHalf};
constexpr at::ScalarType kBiasDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16,
                                          at::kHalf,  at::kLong,   at::kBool};
const std::optional<int64_t> kWindows[] = {
    {}, 1, 2, 3, 7, 64, kLargest, 0, -1, -kLargest - 1, kLargest - 1, int64_t{1} << 40};
const std::optional<int64_t> kSides[] = {{}, 0, 1, 2, 9, 40, kLargest, -1, -kLargest - 1};
constexpr int64_t kReaches[] = {0, 1, 3, 20, 200};
const std::optional<double> kScales[] = {{},        1.0,        1e-3, -0.5,  30.0,  1e30,  kNaN,
                                         kInfinity, -kInfinity, 1e39, 1e-46, -1e39, 1e300, 0.0};
const std::optional<double> kSoftcaps[] = {{},   5.0,  0.5,   1e9,  1e-3,  50.0, 0.0,  -1.0,
                                           kNaN, 1e39, 1e-46, 1e18, 1e-18, 1e38, 1e300};
constexpr double kDropouts[] = {0.0, 0.25, 1.0, -0.1, kNaN, 0.99, 1.0 - 0x1p-53};
const std::optional<double> kPoisons[] = {{}, kNaN, kInfinity, -kInfinity};
constexpr double kMeans[] = {0.0, 100.0, 1000.0, 1e4, -3e4};
constexpr double kHeadFills[] = {0.0,   kInfinity, -kInfinity, 1e300, -1e300,
                                 -1e30, 1e30,      1e4,        1e-30};

template <typename T, size_t N>
const T& at_index(const T (&table)[N], int64_t index) {
  return table[static_cast<size_t>(index) % N];
}

/// The shape of a mask or a bias. The last three fit only where sizes happen to be 1.
Shape score_shape(const Case& c, int64_t kind) {
  const auto B = c.mask_batch > 0 ? c.batches : c.B;
  const Shape shapes[] = {{},
                          {c.L, c.S},
                          {B, c.L, c.S},
                          {1, c.L, c.S},
                          {B, c.H, c.L, c.S},
                          {B, 1, 1, c.S},
                          {1, c.H, c.L, c.S},
                          {1, 1, c.L, c.S},
                          {B, c.H, 1, c.S},
                          {1, c.S},
                          {B, c.H, c.L, 1},
                          {c.S}};
  return at_index(shapes, kind);
}

Shape spoiled_shape(const Case& c, Victim victim, Shape shape) {
  if (c.victim != victim) return shape;
  if (c.defect == kMissingDim && !shape.empty()) shape.erase(shape.begin());
  if (c.defect == kExtraDim) shape.insert(shape.begin(), 1);
  const auto dim = static_cast<size_t>(std::max<int64_t>(c.defect - kLargerDim, 0));
  if (c.defect >= kLargerDim && dim < shape.size()) ++shape[dim];
  return shape;
}

at::Tensor spoiled(const Case& c, Victim victim, const at::Tensor& tensor) {
  if (c.victim != victim) return tensor;
  if (c.defect == kUndefined) return {};
  if (c.defect == kSparse) return tensor.detach().resolve_neg().resolve_conj().to_sparse();
  return c.defect == kMeta ? tensor.to(at::kMeta) : tensor;
}

bool wants_grad(const Case& c, Victim victim, const at::Tensor& tensor) {
  return (c.grad >> victim & 1) != 0 && c.inference != 3 && tensor.defined() &&
         (tensor.is_floating_point() || tensor.is_complex());
}

at::Tensor finished(const Case& c, Victim victim, const at::Tensor& dense, int64_t layout) {
  const auto tensor = spoiled(c, victim, test::lay_out(dense, layout));
  return wants_grad(c, victim, tensor) ? tensor.detach().requires_grad_() : tensor;
}

/// Which keys a mask shows, or a bias leaves alone.
at::Tensor shown(const Shape& shape, int64_t fill) {
  const auto random = test::random_mask(shape);
  if (shape.size() < 2) return random;
  const auto L = shape[shape.size() - 2], S = shape.back();
  auto rows = shape;
  rows.back() = 1;
  switch (fill) {
    case 1:
      return random.logical_and(test::random_mask(rows));  // some queries see no key
    case 2:
      return at::zeros_like(random);
    case 3:
      return at::ones(shape, at::kBool);
    case 4:  // the key at the query's own position
      return at::arange(S).eq((at::arange(L) + (S - L)).unsqueeze(1)).expand(shape).contiguous();
    case 5: {  // blocks as large as the cells of kernels
      constexpr int64_t kSide = 16;
      const auto blocks = test::random_mask({L / kSide + 1, S / kSide + 1});
      return blocks.repeat_interleave(kSide, 0)
          .repeat_interleave(kSide, 1)
          .narrow(0, 0, L)
          .narrow(1, 0, S)
          .expand(shape)
          .contiguous();
    }
    default:
      return random;
  }
}

std::optional<at::Tensor> make_bias(const Case& c) {
  if (c.bias == 0) return std::nullopt;
  constexpr double kHidden[] = {0.0, -kInfinity, -kInfinity, -1e4};
  const auto shape = spoiled_shape(c, kBias, score_shape(c, c.bias));
  const auto scores = test::uniform(shape, at::kDouble);
  const auto dense = c.bias_fill == 0 ? scores
                                      : scores.masked_fill(shown(shape, c.bias_fill).logical_not(),
                                                           at_index(kHidden, c.bias_fill));
  return finished(c, kBias, dense.to(at_index(kBiasDtypes, c.bias_dtype)), c.bias_layout);
}

/// Every second one extreme; slopes finite.
at::Tensor with_extremes(const at::Tensor& values, int64_t fill, bool finite) {
  if (fill == 0) return values;
  const auto largest = values.scalar_type() == at::kDouble ? 1e300 : 3e38;
  const auto wanted = at_index(kHeadFills, fill);
  const auto extreme = finite ? std::clamp(wanted, -largest, largest) : wanted;
  const auto even = at::arange(values.numel()).remainder(2).eq(0).view(values.sizes());
  return at::where(even, at::full({}, extreme, at::kDouble).to(values.scalar_type()), values);
}

std::optional<at::Tensor> make_head_values(const Case& c, Victim victim, int64_t kind) {
  if (kind == 0) return std::nullopt;
  const bool slopes = victim == kSlopes;
  const bool of_batch = slopes && c.alibi_rows != 0;
  const auto shape = spoiled_shape(c, victim, of_batch ? Shape{c.B, c.H} : Shape{c.H});
  const auto values = test::uniform(shape, dtype_of(kind - 1));
  if (!values.is_floating_point()) return finished(c, victim, values, 0);
  return finished(c, victim, with_extremes(values, slopes ? c.slopes_fill : c.sinks_fill, slopes),
                  0);
}

/// Few documents in order or not, of each batch or all.
void set_documents(const Case& c, AttendOptions& options) {
  if (c.documents == 0) return;
  const auto ids = [&](int64_t length) {
    const bool in_order = c.documents % 2 == 0;
    const auto shape = c.documents > 2 ? Shape{c.B, length} : Shape{length};
    const auto random = at::randint(-1, 3, shape, in_order ? at::kInt : at::kLong);
    return in_order ? std::get<0>(random.sort(-1)) : random;
  };
  options.documents(ids(c.L)).key_documents(ids(c.S));
}

std::optional<at::Tensor> make_relative_bias(const Case& c) {
  if (c.relative == 0) return std::nullopt;
  auto values = test::uniform(spoiled_shape(c, kRelative, {c.H, 2 * reach_of(c) + 1}), at::kDouble);
  if (c.relative_fill != 0) {
    values = values.masked_fill(test::random_mask(values.sizes()).logical_not(), -kInfinity);
  }
  return finished(c, kRelative, values.to(at_index(kBiasDtypes, c.relative_dtype)), 0);
}

/// Lengths of queries or keys. The mistakes: one is too large or negative, their dtype, their
/// number.
at::Tensor make_lengths(const Case& c, int64_t most) {
  Integers lengths;
  for (int64_t b = 0; b < c.B; ++b) lengths.push_back(draw_below(most + 1));
  if (c.lengths == 4 && !lengths.empty()) lengths.back() = most + 1;
  if (c.lengths == 5 && !lengths.empty()) lengths.back() = -1;
  if (c.lengths == 7) lengths.push_back(0);
  return at::tensor(lengths, c.lengths == 6 ? at::kInt : at::kLong);
}

/// Sets the options that say which keys a query reaches.
void set_reach(const Case& c, AttendOptions& options) {
  constexpr MaskBatch kOrders[] = {MaskBatch::each, MaskBatch::cycled, MaskBatch::repeated};
  options.mask_batch(at_index(kOrders, c.mask_batch));
  const auto rows = [&](bool of_each, int64_t length) {
    return of_each ? Shape{c.B, length} : Shape{length};
  };
  if (c.global > 0) {
    const auto tokens = at::rand(rows(c.global == 2, c.S + (c.global == 4 ? 1 : 0))).lt(0.2);
    options.global_tokens(c.global == 3 ? tokens.to(at::kLong) : tokens);
  }
  if (c.lengths == 1 || c.lengths > 2) options.query_lengths(make_lengths(c, c.L));
  if (c.lengths == 2 || c.lengths == 3) options.key_lengths(make_lengths(c, c.S));
  if (c.relative_positions == 0) return;
  const auto shape = rows(c.relative_positions == 2, c.S + (c.relative_positions == 4 ? 1 : 0));
  options.relative_positions(
      at::randint(-5, 6, shape, c.relative_positions == 3 ? at::kInt : at::kLong));
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

void describe(std::ostream& stream, const char* name, const std::optional<at::Tensor>& tensor) {
  if (!tensor) return;
  stream << "  " << name;
  if (!tensor->defined()) {
    stream << " undefined\n";
    return;
  }
  stream << ' ' << c10::toString(tensor->scalar_type()) << ' ' << tensor->sizes();
  if (tensor->layout() == at::kStrided) stream << ", strides " << tensor->strides();
  if (tensor->is_neg()) stream << ", negative bit";
  if (tensor->requires_grad()) stream << ", requires grad";
  stream << '\n';
}

template <typename T>
void describe_value(std::ostream& stream, const char* name, const std::optional<T>& value) {
  if (value) stream << "  " << name << ' ' << *value << '\n';
}

}  // namespace

at::ScalarType dtype_of(int64_t index) { return at_index(kDtypes, index); }
std::optional<int64_t> window_of(const Case& c) { return at_index(kWindows, c.window); }
std::optional<int64_t> left_of(const Case& c) { return at_index(kSides, c.left); }
std::optional<int64_t> right_of(const Case& c) { return at_index(kSides, c.right); }
int64_t reach_of(const Case& c) { return at_index(kReaches, c.relative - 1); }
std::optional<double> scale_of(const Case& c) { return at_index(kScales, c.scale); }
std::optional<double> softcap_of(const Case& c) { return at_index(kSoftcaps, c.softcap); }
double dropout_of(const Case& c) { return at_index(kDropouts, c.dropout); }
std::optional<double> poison_of(const Case& c) { return at_index(kPoisons, c.poison); }
double mean_of(const Case& c) { return at_index(kMeans, c.mean); }

at::Tensor make_values(const Case& c, Victim victim, Shape shape, at::ScalarType dtype,
                       int64_t layout) {
  auto dense = test::uniform(spoiled_shape(c, victim, std::move(shape)), dtype);
  if (victim == kValue && c.mean > 0 && dense.is_floating_point()) dense = dense + mean_of(c);
  return finished(c, victim, dense, layout);
}

std::optional<at::Tensor> make_mask(const Case& c) {
  if (c.mask == 0) return std::nullopt;
  const auto shape = spoiled_shape(c, kMask, score_shape(c, c.mask));
  const auto dtype = at_index(kMaskDtypes, c.mask_dtype);
  auto dense = shown(shape, c.mask_fill).to(dtype);
  if (dtype != at::kBool) dense = dense * 3;  // any number but 0 shows a key
  return finished(c, kMask, dense, c.mask_layout);
}

int64_t draw_below(int64_t n) { return at::randint(n, {1}, at::kLong).item<int64_t>(); }

std::vector<int64_t> draw_lengths(const Case& c, int64_t length) {
  std::vector<int64_t> lengths(static_cast<size_t>(c.B), length);
  if (c.ragged == 0) return lengths;
  for (auto& drawn : lengths) drawn = draw_below(length + 1);
  return lengths;
}

AttendOptions make_options(const Case& c) {
  AttendOptions options;
  set_score_options(c, options);
  set_reach(c, options);
  if (c.target != kAttendVarlen) set_documents(c, options);
  return options.mask(make_mask(c))
      .bias(make_bias(c))
      .relative_bias(make_relative_bias(c))
      .alibi_slopes(make_head_values(c, kSlopes, c.alibi))
      .sinks(make_head_values(c, kSinks, c.sinks));
}

/// kLargerDim and its like are mistakes of the offsets themselves here.
at::Tensor make_offsets(const Case& c, const std::vector<int64_t>& lengths, bool may_be_spoiled) {
  std::vector<int64_t> ends = {0};
  for (const auto length : lengths) ends.push_back(ends.back() + length);
  const auto dtype = c.short_offsets != 0 ? at::kInt : at::kLong;
  if (c.victim != kOffsets || !may_be_spoiled) return at::tensor(ends, dtype);
  if (c.defect == kLargerDim) ends.push_back(ends.back());
  if (c.defect == kLargerDim + 1) ++ends.front();
  if (c.defect == kLargerDim + 2) ++ends.back();
  if (c.defect == kLargerDim + 3) std::reverse(ends.begin(), ends.end());
  const auto offsets = at::tensor(ends, dtype);
  if (c.defect == kMissingDim) return offsets.to(at::kShort);
  return c.defect == kExtraDim ? offsets.unsqueeze(0) : spoiled(c, kOffsets, offsets);
}

Call make_call(const Case& c) {
  const c10::InferenceMode made_there(c.inference >= 2);
  const auto dtype = dtype_of(c.dtype);
  const auto key_dtype = dtype_of(c.dtype + c.key_dtype);
  const auto value_dtype = dtype_of(c.dtype + c.value_dtype);
  Call call;
  if (c.target != kAttendVarlen) {
    call.query = make_values(c, kQuery, {c.B, c.H, c.L, c.D}, dtype, c.query_layout);
    call.key = make_values(c, kKey, {c.B, c.G, c.S, c.D}, key_dtype, c.key_layout);
    call.value = make_values(c, kValue, {c.B, c.G, c.S, c.Dv}, value_dtype, c.value_layout);
  } else {
    const auto query_lengths = draw_lengths(c, c.L), key_lengths = draw_lengths(c, c.S);
    const auto T = sum(query_lengths), U = sum(key_lengths);
    call.query = make_values(c, kQuery, {T, c.H, c.D}, dtype, c.query_layout);
    call.key = make_values(c, kKey, {U, c.G, c.D}, key_dtype, c.key_layout);
    call.value = make_values(c, kValue, {U, c.G, c.Dv}, value_dtype, c.value_layout);
    call.query_offsets = make_offsets(c, query_lengths, c.seed % 2 == 0);
    call.key_offsets = make_offsets(c, key_lengths, c.seed % 2 != 0);
  }
  call.options = make_options(c);
  return call;
}

std::string describe(const Call& call) {
  std::ostringstream stream;
  describe(stream, "query", call.query);
  describe(stream, "key", call.key);
  describe(stream, "value", call.value);
  describe(stream, "mask", call.options.mask());
  if (call.options.block_mask()) stream << "  " << *call.options.block_mask() << '\n';
  describe(stream, "bias", call.options.bias());
  describe(stream, "documents", call.options.documents());
  describe(stream, "key_documents", call.options.key_documents());
  describe(stream, "alibi_slopes", call.options.alibi_slopes());
  describe(stream, "sinks", call.options.sinks());
  describe(stream, "relative_bias", call.options.relative_bias());
  describe(stream, "relative_positions", call.options.relative_positions());
  describe(stream, "global_tokens", call.options.global_tokens());
  describe(stream, "query_lengths", call.options.query_lengths());
  describe(stream, "key_lengths", call.options.key_lengths());
  if (call.options.causal()) stream << "  causal\n";
  if (call.options.top_left()) stream << "  top left\n";
  if (call.options.mask_batch() == MaskBatch::cycled) stream << "  cycled\n";
  if (call.options.mask_batch() == MaskBatch::repeated) stream << "  repeated\n";
  describe_value(stream, "window", call.options.window());
  describe_value(stream, "left_window", call.options.left_window());
  describe_value(stream, "right_window", call.options.right_window());
  describe_value(stream, "scale", call.options.scale());
  describe_value(stream, "softcap", call.options.softcap());
  if (call.options.dropout() != 0.0) stream << "  dropout " << call.options.dropout() << '\n';
  return stream.str();
}

}  // namespace heed::fuzz

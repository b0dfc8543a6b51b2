// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <heed/rotary_embedding.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/check_memory.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "cpu/layers/rotate.h"
#include "modules/layers/cos_and_sin.h"
#include "modules/layers/remembered_angles.h"
#include "modules/layers/rotary_scaling.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

using detail::kRotaryEmbedding;

/// A scaling that sections do not take, for errors; null if they take it.
const char* refused_by_sections(const RotaryScaling& scaling) {
  if (std::holds_alternative<LongRopeScaling>(scaling)) return "LongRopeScaling";
  const auto* ntk = std::get_if<NtkScaling>(&scaling);
  return ntk && ntk->original_length() ? "NtkScaling with original_length" : nullptr;
}

void check_sections(const RotaryEmbeddingOptions& options, int64_t dim) {
  const auto& sections = options.sections();
  if (sections.empty()) {
    HEED_CHECK(!options.restart_sections(), "{}: restart_sections must be used with sections",
               kRotaryEmbedding);
    return;
  }
  HEED_CHECK(sections.size() == 2 || sections.size() == 3, "{}: sections size ({}) must be 2 or 3",
             kRotaryEmbedding, sections.size());
  auto rest = dim / 2;
  for (const auto section : sections) {
    detail::check_positive(kRotaryEmbedding, "sections", section);
    rest = section <= rest ? rest - section : -1;
  }
  HEED_CHECK(rest == 0, "{}: sections {} must sum to half of rotary_dim ({})", kRotaryEmbedding,
             c10::str(at::IntArrayRef(sections)), dim);
  const auto* refused = options.scaling() ? refused_by_sections(*options.scaling()) : nullptr;
  HEED_CHECK(refused == nullptr,
             "{}: sections must not be used with {}: its frequencies depend on the length",
             kRotaryEmbedding, refused);
}

void check_input(const at::Tensor& x, int64_t head_dim) {
  HEED_CHECK(x.defined(), "{}: x must be defined", kRotaryEmbedding);
  detail::check_rank(kRotaryEmbedding, "x", x, 4);
  HEED_CHECK(x.is_floating_point(), "{}: x dtype ({}) must be floating", kRotaryEmbedding,
             c10::toString(x.scalar_type()));
  HEED_CHECK(x.size(3) == head_dim, "{}: x dim 3 ({}) must equal head_dim ({}); x {}",
             kRotaryEmbedding, x.size(3), head_dim, detail::shape(x));
}

/// Views one number for each position, [L] or [B, L], as [1 or B, 1, L, 1], so that it broadcasts
/// to heads and pairs.
at::Tensor in_rows(const at::Tensor& numbers) {
  const auto per_batch = numbers.dim() == 2 ? numbers : numbers.unsqueeze(0);
  return per_batch.unsqueeze(1).unsqueeze(3);
}

void check_positions(const at::Tensor& positions, const std::vector<int64_t>& sections) {
  if (sections.empty()) return detail::check_positions(kRotaryEmbedding, positions);
  detail::check_defined(kRotaryEmbedding, "positions", positions);
  detail::check_integer(kRotaryEmbedding, "positions", positions);
  const auto axes = static_cast<int64_t>(sections.size()), rank = positions.dim();
  HEED_CHECK(
      rank == 1 ||
          ((rank == 2 || rank == 3) && (positions.size(-1) == axes || positions.size(-1) == 1)),
      "{}: positions must be [L], [L, {} or 1] or [B, L, {} or 1] with sections {}; "
      "positions {}",
      kRotaryEmbedding, axes, axes, c10::str(at::IntArrayRef(sections)), detail::shape(positions));
}

/// Views or repeats positions as [1 or B, 1, L, R / 2], or as [1 or B, 1, L, 1] if all pairs of a
/// token have the same one.
at::Tensor by_pairs(const at::Tensor& positions, const std::vector<int64_t>& sections) {
  if (sections.empty() || positions.dim() == 1) return in_rows(positions);
  auto rows = (positions.dim() == 3 ? positions : positions.unsqueeze(0)).unsqueeze(1);
  if (rows.size(3) == 1) return rows;
  std::vector<at::Tensor> parts;
  parts.reserve(sections.size());
  for (size_t axis = 0; axis < sections.size(); ++axis) {
    parts.push_back(
        rows.narrow(3, static_cast<int64_t>(axis), 1).expand({-1, -1, -1, sections[axis]}));
  }
  return at::cat(parts, 3);
}

/// The largest position + 1 of each row: float64 [1] or [B, 1].
at::Tensor lengths_of(const at::Tensor& positions) {
  const auto numbers = positions.to(at::kDouble);
  if (positions.numel() == 0) return at::zeros({1}, numbers.options());
  return numbers.amax(-1, /*keepdim=*/true) + 1.0;
}

void check_lengths(const at::Tensor& lengths, const at::Tensor& positions) {
  HEED_CHECK(lengths.defined(), "{}: lengths must be defined", kRotaryEmbedding);
  detail::check_integer(kRotaryEmbedding, "lengths", lengths);
  const auto count = positions.size(-1), rows = positions.dim() == 2 ? positions.size(0) : 1;
  const auto own = lengths.dim() == 2 ? lengths.size(0) : 1;
  HEED_CHECK((lengths.dim() == 1 || lengths.dim() == 2) &&
                 (lengths.size(-1) == 1 || lengths.size(-1) == count) &&
                 (own == 1 || rows == 1 || own == rows),
             "{}: lengths {} must be broadcast to positions; positions {}", kRotaryEmbedding,
             detail::shape(lengths), detail::shape(positions));
  detail::check_same_device(kRotaryEmbedding, "lengths", lengths, "positions", positions);
}

void check_angles(const RotaryAngles& angles, const at::Tensor& x, int64_t pairs) {
  const auto& [cos, sin] = angles;
  for (const auto& [name, numbers] : {std::pair{"cos", &cos}, std::pair{"sin", &sin}}) {
    detail::check_defined(kRotaryEmbedding, name, *numbers);
    HEED_CHECK(numbers->is_floating_point(), "{}: {} dtype ({}) must be floating", kRotaryEmbedding,
               name, c10::toString(numbers->scalar_type()));
  }
  HEED_CHECK(
      cos.dim() == 4 && cos.size(1) == 1 && cos.size(3) == pairs && sin.sizes() == cos.sizes(),
      "{}: angles cos and sin must be [1 or B, 1, L, {}]; cos {}, sin {}", kRotaryEmbedding, pairs,
      detail::shape(cos), detail::shape(sin));
  HEED_CHECK(x.size(2) == cos.size(2), "{}: x dim 2 ({}) must equal the number of positions ({})",
             kRotaryEmbedding, x.size(2), cos.size(2));
  HEED_CHECK(cos.size(0) == 1 || x.size(0) == cos.size(0),
             "{}: x dim 0 ({}) must equal positions dim 0 ({})", kRotaryEmbedding, x.size(0),
             cos.size(0));
  HEED_CHECK(x.device() == cos.device() && x.device() == sin.device(),
             "{}: x device ({}) must equal positions device ({})", kRotaryEmbedding,
             x.device().str(), cos.device().str());
}

/// Whether the stream is capturing a CUDA graph. Streams of LibTorch 2.6 have no function for
/// this; then it returns false. That of LibTorch 2.12 throws for streams of the CPU.
/// @{
template <typename Stream>
auto is_capturing(const Stream& stream, int /*preferred*/) -> decltype(stream.is_capturing()) {
  return stream.is_capturing();
}
template <typename Stream>
bool is_capturing(const Stream& /*stream*/, int64_t /*otherwise*/) {
  return false;
}
/// @}

}  // namespace

bool operator==(const RotaryEmbeddingOptions& a, const RotaryEmbeddingOptions& b) {
  const auto plain = [](const RotaryEmbeddingOptions& options) {
    return std::tuple(options.head_dim(), options.rotary_dim().value_or(options.head_dim()),
                      options.base(), options.pairing(), options.sections(),
                      options.restart_sections(), options.scaling().has_value());
  };
  const auto &one = a.scaling(), &other = b.scaling();
  return plain(a) == plain(b) && (!one || !other || detail::are_equal(*one, *other));
}

RotaryEmbeddingImpl::RotaryEmbeddingImpl(const RotaryEmbeddingOptions& options) : options(options) {
  reset();
}

int64_t RotaryEmbeddingImpl::rotary_dim() const {
  return options.rotary_dim().value_or(options.head_dim());
}

void RotaryEmbeddingImpl::reset() {
  detail::check_positive(kRotaryEmbedding, "head_dim", options.head_dim());
  const auto dim = rotary_dim();
  HEED_CHECK(dim > 0 && dim % 2 == 0 && dim <= options.head_dim(),
             "{}: rotary_dim ({}) must be even, above 0 and at most head_dim ({})",
             kRotaryEmbedding, dim, options.head_dim());
  detail::check_memory(kRotaryEmbedding, "frequencies", {dim / 2}, at::kDouble);
  HEED_CHECK(std::isfinite(options.base()) && options.base() > 1.0,
             "{}: base ({}) must be finite and above 1", kRotaryEmbedding, options.base());
  check_sections(options, dim);
  detail::check_scaling(options, dim);
  remembered_ = std::make_shared<detail::RememberedAngles>();
  const auto& scaling = options.scaling();
  attention_factor_ = scaling ? detail::attention_factor(*scaling) : 1.0;
  if (!options.restart_sections()) {
    frequencies_ = detail::rotary_frequencies(options.base(), dim, scaling);
    return;
  }
  std::vector<at::Tensor> parts;
  for (const auto pairs : options.sections()) {
    parts.push_back(detail::rotary_frequencies(options.base(), 2 * pairs, scaling));
  }
  frequencies_ = at::cat(parts);
}

void RotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter printer(stream, kRotaryEmbedding);
  printer.show("head_dim", options.head_dim())
      .option("rotary_dim", options.rotary_dim())
      .show("base", options.base());
  if (options.pairing() == RotaryPairing::interleaved) printer.show("pairing", "interleaved");
  if (const auto& scaling = options.scaling()) printer.show("scaling", detail::printed(*scaling));
  if (!options.sections().empty()) {
    printer.show("sections", c10::str(at::IntArrayRef(options.sections())))
        .option("restart_sections", options.restart_sections(), false);
  }
}

/// Returns the frequencies [.., R / 2] of sequences whose lengths are float64 [.., 1].
at::Tensor RotaryEmbeddingImpl::frequencies(const at::Tensor& lengths) const {
  const auto& scaling = options.scaling();
  TORCH_INTERNAL_ASSERT(scaling);
  return detail::rotary_frequencies(options.base(), rotary_dim(), *scaling, lengths);
}

RotaryAngles RotaryEmbeddingImpl::angles(const at::Tensor& positions, at::ScalarType dtype) const {
  check_positions(positions, options.sections());
  if (!depends_on_length()) {
    return angles_by(remembered_->copies.copy(frequencies_, positions.device()), positions, dtype);
  }
  return angles_by(frequencies(in_rows(lengths_of(positions))), positions, dtype);
}

RotaryAngles RotaryEmbeddingImpl::angles(const at::Tensor& positions, const at::Tensor& lengths,
                                         at::ScalarType dtype) const {
  check_positions(positions, options.sections());
  const bool has_axes = !options.sections().empty() && positions.dim() > 1;
  check_lengths(lengths, has_axes ? positions.select(-1, 0) : positions);
  if (!depends_on_length()) return angles(positions, dtype);
  return angles_by(frequencies(in_rows(lengths.to(at::kDouble))), positions, dtype);
}

/// Returns the angles of positions. `frequencies` are [R / 2], or [B or 1, 1, L or 1, R / 2] if
/// rows or positions have their own.
RotaryAngles RotaryEmbeddingImpl::angles_by(const at::Tensor& frequencies,
                                            const at::Tensor& positions,
                                            at::ScalarType dtype) const {
  const auto precise = detail::compute_dtype(dtype);
  const auto angles = by_pairs(positions, options.sections()).to(at::kDouble) * frequencies;
  const auto [cos, sin] = detail::cos_and_sin(angles);
  if (attention_factor_ == 1.0) return {cos.to(precise), sin.to(precise)};
  return {(cos * attention_factor_).to(precise), (sin * attention_factor_).to(precise)};
}

RotaryAngles RotaryEmbeddingImpl::angles(int64_t first, int64_t count,
                                         const at::TensorOptions& like) const {
  detail::check_not_negative(kRotaryEmbedding, "count", count);
  detail::check_memory(kRotaryEmbedding, "angles", {count, rotary_dim() / 2}, at::kDouble);
  HEED_CHECK(first <= std::numeric_limits<int64_t>::max() - count,
             "{}: first ({}) must leave room for count ({}) positions", kRotaryEmbedding, first,
             count);
  const auto dtype = detail::compute_dtype(c10::typeMetaToScalarType(like.dtype()));
  const detail::AngleRange range{first, count, dtype, detail::current_stream(like.device()),
                                 c10::InferenceMode::is_enabled()};
  // A CUDA graph must compute its angles itself, because remembered ones are soon replaced by
  // others.
  const bool remembers = !like.device().is_cuda() || !is_capturing(range.stream, 0);
  if (remembers) {
    if (auto remembered = remembered_->find(range)) return *std::move(remembered);
  }
  const auto positions =
      at::arange(first, first + count, at::device(like.device()).dtype(at::kLong));
  auto made = angles(positions, dtype);
  if (remembers) remembered_->keep(range, made);
  return made;
}

at::Tensor RotaryEmbeddingImpl::rotate(const at::Tensor& x, const RotaryAngles& angles) const {
  check_input(x, options.head_dim());
  check_angles(angles, x, rotary_dim() / 2);
  const auto computed = detail::compute_dtype(x.scalar_type());
  const auto as_computed = [&](const at::Tensor& numbers) {
    return numbers.scalar_type() == computed ? numbers : numbers.to(computed);
  };
  return detail::rotate(x, {as_computed(angles.cos), as_computed(angles.sin),
                            options.pairing() == RotaryPairing::interleaved});
}

at::Tensor RotaryEmbeddingImpl::forward(const at::Tensor& x,
                                        const std::optional<at::Tensor>& positions) {
  check_input(x, options.head_dim());
  return rotate(
      x, positions ? angles(*positions, x.scalar_type()) : angles(0, x.size(2), x.options()));
}

}  // namespace heed

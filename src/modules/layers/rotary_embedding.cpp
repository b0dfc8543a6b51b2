#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <heed/rotary_embedding.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/check_memory.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "core/to_device.h"
#include "cpu/layers/rotate.h"
#include "modules/layers/cos_and_sin.h"
#include "modules/layers/remembered_angles.h"
#include "modules/layers/yarn.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kRotaryEmbedding = "RotaryEmbedding";
constexpr double kTwoPi = 6.283185307179586;

/// The unscaled frequencies base^(-2 i / R), from which each scaling computes its own. They are
/// float64: in float32, one rounding of a frequency or an angle turns a pair by 0.03 at position
/// 1,000,000.
struct Frequencies {
  double base;
  int64_t dim;  // R: the number of elements that are rotated

  at::Tensor inverse(double with_base) const {
    return at::pow(with_base, at::arange(0, dim, 2, at::kDouble) / static_cast<double>(dim));
  }
  at::Tensor unscaled() const { return 1.0 / inverse(base); }
  at::Tensor ntk(double factor) const {
    return 1.0 / inverse(base * std::pow(factor, ntk_exponent()));
  }
  /// Returns the frequencies of NTK scaling for factors [.., 1]: [.., R / 2].
  at::Tensor ntk(const at::Tensor& factors) const {
    const auto exponents = at::arange(0, dim, 2, factors.options()) / static_cast<double>(dim);
    return 1.0 / at::pow(base * at::pow(factors, ntk_exponent()), exponents);
  }
  double ntk_exponent() const { return static_cast<double>(dim) / static_cast<double>(dim - 2); }
  at::Tensor divided(const std::vector<double>& factors) const {
    return unscaled() / at::tensor(factors, at::kDouble);
  }
};

/// Scaled frequencies [.., R / 2] of sequences with lengths float64 [.., 1], for scalings that
/// depend on the length. Lengths are not read on the host, which would wait for their device.
/// @{
at::Tensor scale(const Frequencies& original, const NtkScaling& scaling,
                 const at::Tensor& lengths) {
  const auto trained = static_cast<double>(scaling.original_length().value_or(0));
  return original.ntk(scaling.factor() * lengths.clamp_min(trained) / trained -
                      (scaling.factor() - 1.0));
}

at::Tensor scale(const Frequencies& original, const LongRopeScaling& scaling,
                 const at::Tensor& lengths) {
  const auto divided = [&](const std::vector<double>& factors) {
    return detail::to_device(original.divided(factors), lengths.device());
  };
  return at::where(lengths > static_cast<double>(scaling.original_length()),
                   divided(scaling.long_factors()), divided(scaling.short_factors()));
}
/// @}

/// Scaled frequencies [R / 2]; undefined if they depend on the length.
/// @{
at::Tensor scale(const Frequencies& original, const LinearScaling& scaling) {
  return original.unscaled() / scaling.factor();
}

at::Tensor scale(const Frequencies& original, const NtkScaling& scaling) {
  return scaling.original_length() ? at::Tensor() : original.ntk(scaling.factor());
}

at::Tensor scale(const Frequencies& original, const YarnScaling& scaling) {
  // The number of the pair that turns `turns` times within the original length.
  const auto pair = [&](double turns) {
    const auto length = static_cast<double>(scaling.original_length());
    return static_cast<double>(original.dim) * std::log(length / (turns * kTwoPi)) /
           (2.0 * std::log(original.base));
  };
  const double low = std::max(std::floor(pair(scaling.beta_fast())), 0.0);
  const double high =
      std::min(std::ceil(pair(scaling.beta_slow())), static_cast<double>(original.dim - 1));
  const double width = low == high ? 0.001 : high - low;
  const auto kept =
      1.0 - ((at::arange(original.dim / 2, at::kDouble) - low) / width).clamp(0.0, 1.0);
  const auto inverse = original.inverse(original.base);
  return 1.0 / (scaling.factor() * inverse) * (1.0 - kept) + 1.0 / inverse * kept;
}

at::Tensor scale(const Frequencies& original, const Llama3Scaling& scaling) {
  const auto frequencies = original.unscaled();
  const auto length = static_cast<double>(scaling.original_length());
  const auto wavelengths = kTwoPi / frequencies;
  const auto divided = frequencies / scaling.factor();
  const auto kept = (length / wavelengths - scaling.low_freq_factor()) /
                    (scaling.high_freq_factor() - scaling.low_freq_factor());
  const auto ramp = (1.0 - kept) * divided + kept * frequencies;
  const auto scaled = at::where(wavelengths > length / scaling.low_freq_factor(), divided, ramp);
  return at::where(wavelengths < length / scaling.high_freq_factor(), frequencies, scaled);
}

at::Tensor scale(const Frequencies& /*original*/, const LongRopeScaling& /*scaling*/) { return {}; }
/// @}

at::Tensor scale(const Frequencies& original, const std::optional<RotaryScaling>& scaling) {
  if (!scaling) return original.unscaled();
  return std::visit([&](const auto& s) { return scale(original, s); }, *scaling);
}

void check_factor(double factor) {
  HEED_CHECK(std::isfinite(factor) && factor >= 1.0,
             "{}: scaling factor ({}) must be finite and at least 1", kRotaryEmbedding, factor);
}

void check(const LinearScaling& scaling) { check_factor(scaling.factor()); }

void check(const NtkScaling& scaling) {
  check_factor(scaling.factor());
  detail::check_positive(kRotaryEmbedding, "original_length",
                         scaling.original_length().value_or(1));
}

void check(const YarnScaling& scaling) {
  check_factor(scaling.factor());
  detail::check_positive(kRotaryEmbedding, "original_length", scaling.original_length());
  HEED_CHECK(scaling.beta_slow() > 0.0 && scaling.beta_fast() > scaling.beta_slow(),
             "{}: beta_fast ({}) must be above beta_slow ({}), and both above 0", kRotaryEmbedding,
             scaling.beta_fast(), scaling.beta_slow());
  for (const auto& [name, scale] : {std::pair{"mscale", scaling.mscale()},
                                    std::pair{"mscale_all_dim", scaling.mscale_all_dim()}}) {
    HEED_CHECK(std::isfinite(scale) && scale >= 0.0, "{}: {} ({}) must be finite and at least 0",
               kRotaryEmbedding, name, scale);
  }
}

/// The factor by which a scaling multiplies both query and key.
double attention_factor(const RotaryScaling& any) {
  if (const auto* longrope = std::get_if<LongRopeScaling>(&any)) {
    return longrope->attention_factor();
  }
  if (!std::holds_alternative<YarnScaling>(any)) return 1.0;
  const auto& scaling = std::get<YarnScaling>(any);
  if (const auto factor = scaling.attention_factor()) return *factor;
  if (scaling.mscale() == 0.0 || scaling.mscale_all_dim() == 0.0) {
    return detail::yarn_magnitude(scaling, 1.0);
  }
  return detail::yarn_magnitude(scaling, scaling.mscale()) /
         detail::yarn_magnitude(scaling, scaling.mscale_all_dim());
}

void check(const Llama3Scaling& scaling) {
  check_factor(scaling.factor());
  detail::check_positive(kRotaryEmbedding, "original_length", scaling.original_length());
  HEED_CHECK(
      scaling.low_freq_factor() > 0.0 && scaling.high_freq_factor() > scaling.low_freq_factor(),
      "{}: high_freq_factor ({}) must be above low_freq_factor ({}), and both above 0",
      kRotaryEmbedding, scaling.high_freq_factor(), scaling.low_freq_factor());
}

void check(const LongRopeScaling& scaling) {
  detail::check_positive(kRotaryEmbedding, "original_length", scaling.original_length());
  for (const auto& [name, factors] : {std::pair{"short_factors", &scaling.short_factors()},
                                      std::pair{"long_factors", &scaling.long_factors()}}) {
    for (const auto factor : *factors) {
      HEED_CHECK(std::isfinite(factor) && factor > 0.0, "{}: {} ({}) must be finite and above 0",
                 kRotaryEmbedding, name, factor);
    }
  }
  HEED_CHECK(std::isfinite(scaling.attention_factor()) && scaling.attention_factor() > 0.0,
             "{}: attention_factor ({}) must be finite and above 0", kRotaryEmbedding,
             scaling.attention_factor());
}

/// Checks that there is one factor for each pair.
void check_pairs(const char* name, const std::vector<double>& factors, int64_t dim) {
  HEED_CHECK(static_cast<int64_t>(factors.size()) == dim / 2,
             "{}: {} size ({}) must equal half of rotary_dim ({})", kRotaryEmbedding, name,
             factors.size(), dim);
}

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

void check_scaling(const RotaryEmbeddingOptions& options, int64_t dim) {
  if (!options.scaling()) return;
  std::visit([](const auto& s) { check(s); }, *options.scaling());
  if (std::holds_alternative<NtkScaling>(*options.scaling())) {
    HEED_CHECK(dim > 2, "{}: rotary_dim ({}) must be above 2 for NTK scaling", kRotaryEmbedding,
               dim);
    for (const auto pairs : options.sections()) {
      HEED_CHECK(pairs > 1 || !options.restart_sections(),
                 "{}: sections ({}) that restart must be above 1 for NTK scaling", kRotaryEmbedding,
                 pairs);
    }
  }
  if (const auto* longrope = std::get_if<LongRopeScaling>(&*options.scaling())) {
    check_pairs("short_factors", longrope->short_factors(), dim);
    check_pairs("long_factors", longrope->long_factors(), dim);
  }
}

void print(std::ostream& stream, const LinearScaling& scaling) {
  stream << "linear(factor=" << scaling.factor() << ")";
}

void print(std::ostream& stream, const NtkScaling& scaling) {
  stream << "ntk(factor=" << scaling.factor();
  if (const auto length = scaling.original_length()) stream << ", original_length=" << *length;
  stream << ")";
}

void print(std::ostream& stream, const YarnScaling& scaling) {
  stream << "yarn(factor=" << scaling.factor() << ", original_length=" << scaling.original_length()
         << ", beta_fast=" << scaling.beta_fast() << ", beta_slow=" << scaling.beta_slow();
  if (const auto factor = scaling.attention_factor()) stream << ", attention_factor=" << *factor;
  if (scaling.mscale() != 0.0) stream << ", mscale=" << scaling.mscale();
  if (scaling.mscale_all_dim() != 0.0) stream << ", mscale_all_dim=" << scaling.mscale_all_dim();
  stream << ")";
}

void print(std::ostream& stream, const Llama3Scaling& scaling) {
  stream << "llama3(factor=" << scaling.factor()
         << ", original_length=" << scaling.original_length()
         << ", low_freq_factor=" << scaling.low_freq_factor()
         << ", high_freq_factor=" << scaling.high_freq_factor() << ")";
}

void print(std::ostream& stream, const LongRopeScaling& scaling) {
  stream << "longrope(short_factors=" << c10::str(at::ArrayRef<double>(scaling.short_factors()))
         << ", long_factors=" << c10::str(at::ArrayRef<double>(scaling.long_factors()))
         << ", original_length=" << scaling.original_length()
         << ", attention_factor=" << scaling.attention_factor() << ")";
}

/// The options by which two scalings of one kind are compared.
/// @{
auto parts(const LinearScaling& scaling) { return std::tuple(scaling.factor()); }
auto parts(const NtkScaling& scaling) {
  return std::tuple(scaling.factor(), scaling.original_length());
}
auto parts(const YarnScaling& scaling) {
  return std::tuple(scaling.factor(), scaling.original_length(), scaling.beta_fast(),
                    scaling.beta_slow(), scaling.attention_factor(), scaling.mscale(),
                    scaling.mscale_all_dim());
}
auto parts(const Llama3Scaling& scaling) {
  return std::tuple(scaling.factor(), scaling.original_length(), scaling.low_freq_factor(),
                    scaling.high_freq_factor());
}
auto parts(const LongRopeScaling& scaling) {
  return std::tuple(scaling.short_factors(), scaling.long_factors(), scaling.original_length(),
                    scaling.attention_factor());
}
/// @}

bool are_equal(const RotaryScaling& a, const RotaryScaling& b) {
  return a.index() == b.index() && std::visit(
                                       [&](const auto& one) {
                                         using Scaling = std::decay_t<decltype(one)>;
                                         return parts(one) == parts(std::get<Scaling>(b));
                                       },
                                       a);
}

std::string printed(const RotaryScaling& scaling) {
  std::ostringstream text;
  std::visit([&](const auto& s) { print(text, s); }, scaling);
  return text.str();
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
/// this; then it returns false.
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
  return plain(a) == plain(b) && (!one || !other || are_equal(*one, *other));
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
  check_scaling(options, dim);
  remembered_ = std::make_shared<detail::RememberedAngles>();
  const auto& scaling = options.scaling();
  attention_factor_ = scaling ? attention_factor(*scaling) : 1.0;
  if (!options.restart_sections()) {
    frequencies_ = scale({options.base(), dim}, options.scaling());
    return;
  }
  std::vector<at::Tensor> parts;
  for (const auto pairs : options.sections()) {
    parts.push_back(scale({options.base(), 2 * pairs}, options.scaling()));
  }
  frequencies_ = at::cat(parts);
}

void RotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter printer(stream, kRotaryEmbedding);
  printer.show("head_dim", options.head_dim())
      .option("rotary_dim", options.rotary_dim())
      .show("base", options.base());
  if (options.pairing() == RotaryPairing::interleaved) printer.show("pairing", "interleaved");
  if (const auto& scaling = options.scaling()) printer.show("scaling", printed(*scaling));
  if (!options.sections().empty()) {
    printer.show("sections", c10::str(at::IntArrayRef(options.sections())))
        .option("restart_sections", options.restart_sections(), false);
  }
}

/// Returns the frequencies [.., R / 2] of sequences whose lengths are float64 [.., 1].
at::Tensor RotaryEmbeddingImpl::frequencies(const at::Tensor& lengths) const {
  const Frequencies original{options.base(), rotary_dim()};
  const auto& scaling = options.scaling();
  TORCH_INTERNAL_ASSERT(scaling);
  if (const auto* ntk = std::get_if<NtkScaling>(&*scaling)) return scale(original, *ntk, lengths);
  return scale(original, std::get<LongRopeScaling>(*scaling), lengths);
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
  const bool remembers = !is_capturing(range.stream, 0);
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

// SPDX-License-Identifier: BSD-3-Clause
// The mask builders against loops over their definitions.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <heed/masks.h>

#include <array>
#include <functional>
#include <limits>

#include "attend_verdict.h"

namespace heed::fuzz {

namespace {

void expect_mask(const std::optional<at::Tensor>& actual, const Shape& shape,
                 const std::function<bool(at::IntArrayRef)>& sees) {
  if (!actual) return;
  expect(actual->scalar_type() == at::kBool, "mask is not bool");
  expect(actual->sizes() == at::IntArrayRef(shape), "mask has another shape");
  const auto mask = actual->contiguous();
  Shape index(shape.size());
  for (int64_t flat = 0; flat < mask.numel(); ++flat) {
    auto rest = flat;
    for (size_t dim = shape.size(); dim-- > 0; rest /= shape[dim]) index[dim] = rest % shape[dim];
    expect(mask.const_data_ptr<bool>()[flat] == sees(index),
           "mask is wrong at flat index " + std::to_string(flat));
  }
}

/// Bool or integers from -1 to 3, or what a builder must refuse; spoiled if the case wants it, but
/// not moved: a builder need not read what it is given.
at::Tensor make_numbers(Case c, const Shape& shape) {
  if (c.defect == kMeta) c.defect = kNoDefect;
  const auto values = make_values(c, kQuery, shape, at::kDouble, 0);
  if (!values.defined() || values.layout() != at::kStrided) return values;
  constexpr at::ScalarType kDtypes[] = {at::kLong, at::kInt, at::kChar, at::kBool, at::kFloat};
  return (values.detach() * 2 + 1).round().to(kDtypes[(c.mask_dtype + c.dtype) % 5]);
}

bool is_integral(const at::Tensor& tensor, bool or_bool) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         at::isIntegralType(tensor.scalar_type(), or_bool);
}

/// An int64 copy, read by index; dimensions of size 1 broadcast.
class Numbers {
 public:
  explicit Numbers(const at::Tensor& tensor) : tensor_(tensor.to(at::kLong).contiguous()) {}

  size_t rank() const { return static_cast<size_t>(tensor_.dim()); }
  int64_t operator()(at::IntArrayRef index) const {
    int64_t offset = 0;
    for (int64_t dim = 0; dim < tensor_.dim(); ++dim) {
      offset = offset * tensor_.size(dim) + (tensor_.size(dim) == 1 ? 0 : index[dim]);
    }
    return tensor_.const_data_ptr<int64_t>()[offset];
  }

 private:
  at::Tensor tensor_;
};

/// A length, or what is none.
int64_t length_of(const Case& c, int64_t length) { return c.defect == kMissingDim ? -1 : length; }

void check_causal(const Case& c) {
  const auto L = length_of(c, c.L), S = c.S;
  const auto mask = outcome(L >= 0, {"causal_mask"}, [&] { return causal_mask(L, S); });
  expect_mask(mask, {L, S}, [&](at::IntArrayRef i) { return i[1] <= i[0] + S - L; });
}

void check_causal_with_offset(const Case& c) {
  constexpr auto kLargest = std::numeric_limits<int64_t>::max();
  const std::array<int64_t, 6> offsets = {0, 3, -3, 1000, kLargest, -kLargest - 1};
  const auto offset = offsets[static_cast<size_t>(c.scale) % offsets.size()];
  const auto L = length_of(c, c.L), S = c.S;
  const auto mask = outcome(L >= 0, {"causal_mask"}, [&] { return causal_mask(L, S, offset); });
  expect_mask(mask, {L, S}, [&](at::IntArrayRef i) { return i[1] - i[0] <= offset; });
}

void check_window(const Case& c) {
  const auto window = window_of(c).value_or(4);
  const bool causal = c.causal != 0;
  const auto L = length_of(c, c.L), S = c.S;
  const auto mask = outcome(L >= 0 && window >= 1, {"window_mask"},
                            [&] { return window_mask(L, S, window, causal); });
  expect_mask(mask, {L, S}, [&](at::IntArrayRef i) {
    const auto ahead = i[1] - (i[0] + S - L);
    return -ahead < window && (causal ? ahead <= 0 : ahead < window);
  });
}

void check_padding(const Case& c) {
  const auto lengths = make_numbers(c, {c.B});
  const auto S = length_of(c, c.S);
  const bool valid = is_integral(lengths, /*or_bool=*/false) && lengths.dim() == 1 && S >= 0 &&
                     lengths.ge(0).logical_and(lengths.le(S)).all().item<bool>();
  const auto mask = outcome(valid, {"padding_mask"}, [&] { return padding_mask(lengths, S); });
  if (!mask) return;
  const Numbers number(lengths);
  expect_mask(mask, {lengths.size(0), 1, 1, S},
              [&](at::IntArrayRef i) { return i[3] < number({i[0]}); });
}

void check_key_padding(const Case& c) {
  const auto keys = make_numbers(c, {c.B, c.S});
  const bool valid = is_integral(keys, /*or_bool=*/true) && keys.dim() == 2;
  const auto mask = outcome(valid, {"key_padding_mask"}, [&] { return key_padding_mask(keys); });
  if (!mask) return;
  const Numbers number(keys);
  expect_mask(mask, {keys.size(0), 1, 1, keys.size(1)}, [&](at::IntArrayRef i) {
    return number({i[0], i[3]}) != 0;
  });
}

void check_document(const Case& c) {
  const auto ids = make_numbers(c, c.ragged ? Shape{c.B, c.L} : Shape{c.L});
  const bool valid = is_integral(ids, /*or_bool=*/false) && (ids.dim() == 1 || ids.dim() == 2);
  const auto mask = outcome(valid, {"document_mask"}, [&] { return document_mask(ids); });
  if (!mask) return;
  const Numbers number(ids);
  const auto L = ids.size(-1);
  if (ids.dim() == 1) {
    expect_mask(mask, {L, L}, [&](at::IntArrayRef i) { return number({i[0]}) == number({i[1]}); });
  } else {
    expect_mask(mask, {ids.size(0), 1, L, L}, [&](at::IntArrayRef i) {
      return number({i[0], i[2]}) == number({i[0], i[3]});
    });
  }
}

void check_from_hidden(const Case& c) {
  const auto hidden = make_numbers(c, c.ragged ? Shape{c.B, c.L, c.S} : Shape{});
  bool valid = hidden.defined() && hidden.layout() == at::kStrided;
  if (valid && hidden.is_floating_point()) {
    valid = hidden.eq(0).logical_or(hidden.eq(1)).all().item<bool>();
  }
  const auto mask = outcome(valid, {"from_hidden"}, [&] { return from_hidden(hidden); });
  if (!mask) return;
  const Numbers number(hidden);
  expect_mask(mask, hidden.sizes().vec(), [&](at::IntArrayRef i) { return number(i) == 0; });
}

void check_from_additive(const Case& c) {
  constexpr auto kHidden = -std::numeric_limits<float>::infinity();
  auto mask = make_numbers(c, c.ragged ? Shape{c.B, c.L, c.S} : Shape{});
  bool valid = mask.defined() && mask.layout() == at::kStrided && mask.is_floating_point();
  if (valid && c.causal == 0) mask = mask.masked_fill(mask.ne(0), kHidden);
  valid = valid && mask.eq(0).logical_or(mask.eq(kHidden)).all().item<bool>();
  const auto seen =
      outcome(valid, {"mask_from_additive"}, [&] { return mask_from_additive(mask); });
  if (!seen) return;
  const Numbers shows(mask.eq(0));
  expect_mask(seen, mask.sizes().vec(), [&](at::IntArrayRef i) { return shows(i) != 0; });
}

bool broadcasts(const Shape& a, const Shape& b) {
  for (size_t dim = 1; dim <= std::min(a.size(), b.size()); ++dim) {
    const auto x = a[a.size() - dim], y = b[b.size() - dim];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}

Shape with_heads(const at::Tensor& mask) {
  auto shape = mask.sizes().vec();
  if (shape.size() == 3) shape.insert(shape.begin() + 1, 1);
  return shape;
}

void check_combined(const Case& c) {
  std::vector<at::Tensor> masks;
  if (const auto mask = make_mask(c)) masks.push_back(*mask);
  masks.push_back(make_numbers(c, {c.L, c.S}));
  bool valid = true;
  for (const auto& mask : masks) {
    valid = valid && is_integral(mask, /*or_bool=*/true) && mask.dim() >= 2 && mask.dim() <= 4;
  }
  valid = valid && broadcasts(with_heads(masks.front()), with_heads(masks.back()));
  const auto combined = outcome(valid, {"combine_masks"}, [&] { return combine_masks(masks); });
  if (!combined) return;
  std::vector<Numbers> numbers;
  for (const auto& mask : masks) numbers.emplace_back(mask.reshape(with_heads(mask)));
  const auto rank = static_cast<size_t>(combined->dim());
  expect_mask(combined, combined->sizes().vec(), [&](at::IntArrayRef i) {
    return std::all_of(numbers.begin(), numbers.end(), [&](const Numbers& number) {
      return number(i.slice(rank - number.rank())) != 0;
    });
  });
}

}  // namespace

void check_masks(const Case& c) {
  constexpr std::array kBuilders = {check_causal,        check_causal_with_offset, check_window,
                                    check_padding,       check_key_padding,        check_document,
                                    check_from_additive, check_from_hidden,        check_combined};
  kBuilders[static_cast<size_t>(c.builder) % kBuilders.size()](c);
}

}  // namespace heed::fuzz

// RotaryEmbedding about the length that it was trained for: each sequence is rotated by its own
// length, whatever the module was asked for before.

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attend_verdict.h"
#include "rotary_case.h"
#include "support/expect.h"
#include "support/inputs.h"

namespace heed::fuzz {

namespace {

/// Positions of each of the sequences, and the length that each of its tokens is rotated for.
struct Rows {
  std::vector<Integers> positions, lengths;
};

/// Positions rise to the last one of a sequence whose length is about the border.
Integers draw_positions(int64_t count, int64_t length) {
  Integers positions;
  for (int64_t i = 1; i < count; ++i) positions.push_back(draw_below(length));
  if (count > 0) positions.push_back(length - 1);
  std::sort(positions.begin(), positions.end());
  return positions;
}

at::Tensor tensor_of(const std::vector<Integers>& rows, int64_t columns) {
  Integers all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  const auto tensor = at::tensor(all, at::kLong).view({static_cast<int64_t>(rows.size()), columns});
  return draw_below(2) == 0 ? tensor : tensor.to(at::kInt);
}

class Rotations {
 public:
  explicit Rotations(const Case& c)
      : c_(c), rotary_(scaled_rotary(c)), B_(1 + c.B % 3), dtype_(dtype_of(c.dtype % 4)) {
    expect(rotary_->depends_on_length() == (c.scaling == kDynamicNtk || c.scaling == kLongRope),
           "depends_on_length");
  }

  void call() {
    switch (draw_below(5)) {
      case 0:
        return from_the_first();
      case 1:
        return by_positions(1);
      case 2:
        return by_positions(B_);
      case 3:
        return by_lengths();
      default:
        return in_a_range();
    }
  }

 private:
  at::Tensor draw(int64_t L) const {
    return test::uniform({B_, 1 + c_.H % 3, L, rotary_->options.head_dim()}, dtype_);
  }

  void from_the_first() {
    const auto x = draw(draw_below(12) == 0 ? 0 : draw_length(c_));
    check(x, rotary_->forward(x), of_a_range(0, x.size(2)));
  }

  void in_a_range() {
    const auto end = draw_length(c_), count = draw_below(end + 3);
    const auto x = draw(count);
    check(x, rotary_->rotate(x, rotary_->angles(end - count, count, x.options())),
          of_a_range(end - count, count));
  }

  static Rows of_a_range(int64_t first, int64_t count) {
    Integers positions;
    for (int64_t i = 0; i < count; ++i) positions.push_back(first + i);
    return {{positions}, {Integers(static_cast<size_t>(count), first + count)}};
  }

  void by_positions(int64_t sequences) {
    const auto count = draw_below(trained_length(c_) + 3);
    Rows rows;
    for (int64_t b = 0; b < sequences; ++b) {
      const auto length = draw_length(c_);
      rows.positions.push_back(draw_positions(count, length));
      rows.lengths.emplace_back(static_cast<size_t>(count), length);
    }
    const auto x = draw(count);
    const auto positions = tensor_of(rows.positions, count);
    check(x, rotary_->forward(x, sequences == 1 && draw_below(2) == 0 ? positions[0] : positions),
          rows);
  }

  /// A length for all, for each sequence, for each place, or for each token.
  void by_lengths() {
    const auto count = 1 + draw_below(trained_length(c_) + 2);
    const auto kind = draw_below(4);
    Rows rows;
    std::vector<Integers> given;
    for (int64_t b = 0; b < B_; ++b) {
      rows.positions.push_back(draw_positions(count, draw_length(c_)));
      Integers lengths;
      for (int64_t i = 0; i < (kind >= 2 ? count : 1); ++i) lengths.push_back(draw_length(c_));
      if (b == 0 || kind % 2 == 1) given.push_back(lengths);
      rows.lengths.push_back(given.back());
      if (kind < 2) rows.lengths.back().assign(static_cast<size_t>(count), given.back()[0]);
    }
    const auto x = draw(count);
    auto lengths = tensor_of(given, kind >= 2 ? count : 1);
    if (kind % 2 == 0 && draw_below(2) == 0) lengths = lengths[0];
    const auto positions = tensor_of(rows.positions, count);
    check(x, rotary_->rotate(x, rotary_->angles(positions, lengths, dtype_)), rows);
  }

  void check(const at::Tensor& x, const at::Tensor& rotated, const Rows& rows) const {
    expect(rotated.scalar_type() == dtype_, "output's dtype is not the input's");
    // An angle, whose error is a rotation's, is at most as large as the position.
    const auto farthest = static_cast<double>(trained_length(c_) + 2);
    const auto allowed = (8.0 + 4.0 * farthest) * magnitude(c_) * test::unit_roundoff(dtype_);
    for (int64_t b = 0; b < B_; ++b) {
      const auto row = std::min(static_cast<size_t>(b), rows.positions.size() - 1);
      const auto expected = rotate_scaled(c_, x[b], rows.positions[row], rows.lengths[row]);
      expect(test::is_close(rotated[b], expected, allowed), "sequence " + std::to_string(b));
    }
    ++tally.taken;
  }

  const Case& c_;
  RotaryEmbedding rotary_;
  int64_t B_;
  at::ScalarType dtype_;
};

}  // namespace

void check_rotary(const Case& c) {
  outcome(true, {}, [&] {
    Rotations rotations(c);
    for (int64_t i = 0; i < 1 + c.steps % 12; ++i) rotations.call();
    return true;
  });
}

}  // namespace heed::fuzz

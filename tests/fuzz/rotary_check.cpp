// SPDX-License-Identifier: BSD-3-Clause
// RotaryEmbedding about the length that it was trained for: each sequence is rotated by its own
// length, whatever the module was asked for before. Where the length does not matter, tokens may
// have positions on several axes.

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
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
    switch (draw_below(6)) {
      case 0:
        return from_the_first();
      case 1:
        return by_positions(1);
      case 2:
        return by_positions(B_);
      case 3:
        return by_lengths();
      case 4:
        return rotary_->depends_on_length() ? by_lengths() : on_axes();
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

  /// Positions of their own on two or three axes.
  void on_axes() {
    auto options = rotary_->options;
    const auto pairs = options.rotary_dim().value_or(options.head_dim()) / 2;
    const auto second = 1 + draw_below(pairs - 1);
    const auto rest = pairs - second;
    const bool three = rest > 1 && draw_below(2) == 0;
    options.sections(three ? Integers{1, rest - 1, second} : Integers{rest, second});
    const auto count = draw_below(trained_length(c_) + 3);
    const auto x = draw(count);
    std::vector<at::Tensor> on_axis;
    std::vector<Rows> rows(options.sections().size());
    for (auto& own : rows) {
      for (int64_t b = 0; b < B_; ++b) {
        own.positions.push_back(draw_positions(count, draw_length(c_)));
      }
      own.lengths.assign(own.positions.size(), Integers(static_cast<size_t>(count), 1));
      on_axis.push_back(tensor_of(own.positions, count));
    }
    const auto rotated = RotaryEmbedding(options)->forward(x, at::stack(on_axis, 2));
    expect(rotated.scalar_type() == dtype_, "output's dtype is not the input's");
    for (int64_t b = 0; b < B_; ++b) {
      const auto expected = rotate_by(x[b], rows[0], b);
      int64_t pair = 0;
      for (size_t axis = 0; axis < rows.size(); ++axis) {
        const auto own = rotate_by(x[b], rows[axis], b);
        for (const auto end = pair + options.sections()[axis]; pair < end; ++pair) {
          for (const auto element :
               {c_.rotary == 2 ? 2 * pair : pair, c_.rotary == 2 ? 2 * pair + 1 : pair + pairs}) {
            expected.select(2, element).copy_(own.select(2, element));
          }
        }
      }
      expect(test::is_close(rotated[b], expected, allowed()),
             "axes of sequence " + std::to_string(b));
    }
    ++tally.taken;
  }

  at::Tensor rotate_by(const at::Tensor& x, const Rows& rows, int64_t b) const {
    const auto row = std::min(static_cast<size_t>(b), rows.positions.size() - 1);
    return rotate_scaled(c_, x, rows.positions[row], rows.lengths[row]);
  }

  /// An angle, whose error is a rotation's, is at most as large as the position.
  double allowed() const {
    const auto farthest = static_cast<double>(trained_length(c_) + 2);
    return (8.0 + 4.0 * farthest) * magnitude(c_) * test::unit_roundoff(dtype_);
  }

  void check(const at::Tensor& x, const at::Tensor& rotated, const Rows& rows) const {
    expect(rotated.scalar_type() == dtype_, "output's dtype is not the input's");
    for (int64_t b = 0; b < B_; ++b) {
      expect(test::is_close(rotated[b], rotate_by(x[b], rows, b), allowed()),
             "sequence " + std::to_string(b));
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

// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/loss_pass.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "core/ceil_div.h"
#include "core/dtypes.h"
#include "cpu/capability.h"
#include "cpu/layers/score_products.h"
#include "modules/layers/linear.h"

// A pass over the rows of a loss, n of them at a time:
//
//   for each block of rows:
//     scores = x weight^T + bias                       # [n, V], at most 48 MB
//     losses, scores = gradient of scores              # in place
//     gradient of x       = scores weight
//     gradient of weight += scores^T x                 # [V, E], in float32 for half types
//
// The three products bound it. Blocks are as large as they may be, because each of them reads and
// writes the whole gradient of the weight. docs/kernels.md, Loss.

namespace heed::detail {

namespace {

/// The bytes of a block's scores: in a pass of several blocks, and in a shorter one. glibc's malloc
/// takes more than the second number from the kernel, which clears its pages.
constexpr int64_t kScoreBytes = int64_t{48} << 20;
constexpr int64_t kFewScoreBytes = (int64_t{32} << 20) - 4096;
/// The bytes of other temporary tensors: a block of x, a part of the weight's gradient.
constexpr int64_t kCopyBytes = int64_t{8} << 20;

std::atomic<int64_t>& block_bytes() {
  static std::atomic<int64_t> bytes{kScoreBytes};
  return bytes;
}

at::ScalarType precise_dtype(const LossCall& call) { return compute_dtype(call.x.scalar_type()); }

/// Whether gradients are divided by the mean's divisor only when they are finished.
bool divides_at_the_end(const LossCall& call) {
  return call.reduction == LossReduction::mean && call.x.scalar_type() == at::kHalf;
}

/// The factors of the two terms of a row's loss: numbers [], undefined for 1.
struct LossScales {
  at::Tensor loss, z;
};

LossScales scales_of(const LossCall& call, const CountedRows& rows) {
  if (call.reduction != LossReduction::mean) return {};
  if (divides_at_the_end(call)) return {{}, rows.weights / rows.rows};
  return {rows.weights.reciprocal(), rows.rows.reciprocal()};
}

/// The rows that count, of targets on the CPU, which are read here.
CountedRows count_on_cpu(const LossCall& call) {
  CountedRows counted;
  const auto targets = call.targets.resolve_neg().contiguous();
  const auto* y = targets.const_data_ptr<int64_t>();
  const auto all = targets.numel();
  const auto rows = all - std::count(y, y + all, call.ignore_index);
  counted.targets = targets;
  if (rows < all) {
    counted.places = at::empty({rows}, targets.options());
    auto* place = counted.places.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < all; ++i) {
      if (y[i] != call.ignore_index) *place++ = i;
    }
    counted.targets = targets.index_select(0, counted.places);
  }
  if (call.reduction != LossReduction::mean) return counted;
  counted.rows = at::scalar_tensor(std::max<int64_t>(rows, 1), precise_dtype(call));
  counted.weights = rows > 0 && call.class_weight.defined()
                        ? call.class_weight.index_select(0, counted.targets).sum()
                        : counted.rows;
  return counted;
}

/// A block of rows, as LibTorch's operators compute it.
struct PreciseRows {
  at::Tensor s;             // [n, V], in the dtype of computation
  at::Tensor columns;       // [n, 1]: the targets among this process's classes, or 0
  at::Tensor outside;       // bool [n]: whether the target is another process's
  at::Tensor own_weight;    // [V]: the weights of this process's classes, or undefined
  at::Tensor exponentials;  // [n, V]: e^(s - m)
  RowNumbers<at::Tensor> numbers;
};

class RowPass {
 public:
  RowPass(const LossCall& call, const CountedRows& rows, const WantedLossGradients& wanted,
          const at::Tensor& upstream, const RowSums& known)
      : call_(call),
        rows_(rows),
        wanted_(wanted),
        upstream_(upstream),
        known_(known),
        precise_(precise_dtype(call)),
        options_(call.x.options().dtype(precise_)),
        of_{call.classes(), call.class_weight, call.label_smoothing, call.z_loss, call.softcap},
        scales_(scales_of(call, rows)),
        by_kernel_(call.x.is_cpu() && !call.shared && has_kernels()) {}

  LossPass compute() {
    const auto count = rows_.targets.size(0), rows = rows_of_block(count);
    is_one_block_ = count > 0 && count <= rows;
    by_classes_ = (wanted_[0] || wanted_[1]) && takes_score_products(call_.x, call_.weight, rows);
    allocate(count);
    for (int64_t first = 0; first < count; first += rows) {
      compute_block(first, std::min(rows, count - first));
    }
    return std::move(result_);
  }

 private:
  bool wants_gradients() const { return wanted_[0] || wanted_[1] || wanted_[2]; }

  /// How many of `count` rows are a block. All blocks have about as many.
  int64_t rows_of_block(int64_t count) const {
    // LibTorch's operators make copies of the scores in the dtype of computation.
    constexpr int64_t kCopies = 4;
    const auto own = call_.x.element_size();
    const auto copies = by_kernel_ ? 0 : kCopies * static_cast<int64_t>(c10::elementSize(precise_));
    const auto row_bytes = call_.weight.size(0) * (own + copies);
    const auto most = block_bytes().load();
    const bool are_several = count > 4 * kFewScoreBytes / row_bytes;
    const auto by_scores = (are_several ? most : std::min(most, kFewScoreBytes)) / row_bytes;
    const auto by_inputs = kCopyBytes / std::max<int64_t>(call_.x.size(1) * own, 1);
    const auto rows = std::max<int64_t>(std::min(by_scores, by_inputs), 1);
    return ceil_div(count, std::max<int64_t>(ceil_div(count, rows), 1));
  }

  /// Whether the gradient of x is one product as a whole.
  bool is_one_product_of_x() const {
    return is_one_block_ && !rows_.places.defined() && !by_classes_;
  }

  /// Whether products in a half type are added in float32 for the gradient of the weight.
  bool adds_half_products() const {
    const auto dtype = call_.x.scalar_type();
    return dtype != precise_ && (dtype == at::kHalf || !is_one_block_);
  }

  void allocate(int64_t count) {
    auto& gradients = result_.gradients;
    result_.losses = at::empty({count}, options_);
    if (call_.shared) {
      result_.sums = {at::empty({count}, options_), at::empty({count}, options_)};
    }
    if (wanted_[0] && !is_one_product_of_x()) {
      gradients.x = rows_.places.defined() ? at::zeros(call_.x.sizes(), call_.x.options())
                                           : at::empty(call_.x.sizes(), call_.x.options());
    }
    if (wanted_[1] && by_classes_ && count > 0) {
      gradients.weight = at::empty(call_.weight.sizes(), options_);
    } else if (wanted_[1] && (count == 0 || adds_half_products())) {
      gradients.weight = at::zeros(call_.weight.sizes(), options_);
    }
    if (wanted_[2]) gradients.bias = at::zeros(call_.bias.sizes(), options_);
  }

  void compute_block(int64_t first, int64_t count) {
    const auto x = zero_after_rows(block_of_x(first, count));
    const auto scores = linear_in_memory(memory_, x, call_.weight, call_.bias);
    const auto targets = rows_.targets.narrow(0, first, count);
    if (by_kernel_) {
      compute_by_kernel(scores, targets, first);
    } else {
      compute_by_operators(scores, targets, first);
    }
    if (by_classes_) {
      add_both_gradients(scores, x, first);
    } else {
      if (wanted_[0]) add_input_gradient(scores, first);
      if (wanted_[1]) add_weight_gradient(scores, x, first == 0);
    }
    if (wanted_[2]) {
      result_.gradients.bias.add_(scores.sum(0, /*keepdim=*/false, precise_));
    }
  }

  at::Tensor block_of_x(int64_t first, int64_t count) const {
    if (rows_.places.defined()) {
      return call_.x.index_select(0, rows_.places.narrow(0, first, count));
    }
    auto x = call_.x.narrow(0, first, count);
    if (!rows_.ignored.defined()) return x;
    // NaN of an ignored row stays out of the weight's gradient.
    return x.masked_fill(rows_.ignored.narrow(0, first, count).unsqueeze(1), 0.0);
  }

  static at::Tensor block_of(const at::Tensor& numbers, int64_t first, int64_t count) {
    return numbers.defined() ? numbers.narrow(0, first, count) : numbers;
  }

  void compute_by_kernel(const at::Tensor& scores, const at::Tensor& targets, int64_t first) {
    const auto number = [](const at::Tensor& scale) {
      return scale.defined() ? scale.item<double>() : 1.0;
    };
    const auto count = scores.size(0);
    cross_entropy(of_,
                  {scores, targets, number(scales_.loss), number(scales_.z),
                   block_of(upstream_, first, count), result_.losses.narrow(0, first, count)},
                  wants_gradients());
  }

  void compute_by_operators(const at::Tensor& scores, const at::Tensor& targets, int64_t first);
  PreciseRows precise_rows(const at::Tensor& scores, const at::Tensor& targets) const;
  void sum_rows(PreciseRows& rows, int64_t first);
  void differentiate(PreciseRows& rows) const;

  void add_both_gradients(const at::Tensor& of_scores, const at::Tensor& x, int64_t first) {
    const auto count = x.size(0);
    auto of_x = block_of(result_.gradients.x, first, count);
    const bool are_places = of_x.defined() && rows_.places.defined();
    if (are_places) of_x = at::empty_like(x);
    add_score_products({of_scores, x, call_.weight}, of_x, result_.gradients.weight, first == 0);
    if (are_places) {
      result_.gradients.x.index_copy_(0, rows_.places.narrow(0, first, count), of_x);
    }
  }

  void add_input_gradient(const at::Tensor& of_scores, int64_t first) {
    auto& gradient = result_.gradients.x;
    const auto weight = call_.weight.t();
    const auto count = of_scores.size(0);
    if (is_one_product_of_x()) {
      gradient = detail::linear(of_scores, weight);
    } else if (rows_.places.defined()) {
      const auto places = rows_.places.narrow(0, first, count);
      gradient.index_copy_(0, places, detail::linear(of_scores, weight));
    } else {
      write_linear(of_scores, weight, gradient.narrow(0, first, count));
    }
  }

  void add_weight_gradient(const at::Tensor& of_scores, const at::Tensor& x, bool is_first) {
    if (adds_half_products()) return add_half_weight_gradient(of_scores, x);
    auto& sum = result_.gradients.weight;
    if (is_first) {
      sum = detail::linear(of_scores.t(), x.t());
    } else {
      add_linear(of_scores.t(), x.t(), sum);
    }
  }

  /// Adds the products of some classes at a time, so that they take little memory before they are
  /// added in float32. Those of float16 might overflow, so they are computed in float32.
  void add_half_weight_gradient(const at::Tensor& of_scores, const at::Tensor& x) {
    const auto& sum = result_.gradients.weight;
    const bool widens = x.scalar_type() == at::kHalf;
    const auto from = widens ? x.to(precise_) : x;
    const auto row = std::max(x.size(0), x.size(1)) * static_cast<int64_t>(sizeof(float));
    const auto classes = std::max<int64_t>(kCopyBytes / std::max<int64_t>(row, 1), 1);
    for (int64_t first = 0; first < sum.size(0); first += classes) {
      const auto count = std::min(classes, sum.size(0) - first);
      const auto own = of_scores.narrow(1, first, count).t();
      auto to = sum.narrow(0, first, count);
      if (widens) {
        to.addmm_(own.to(precise_), from);
      } else {
        to.add_(detail::linear(own, from.t()));
      }
    }
  }

  const LossCall& call_;
  const CountedRows& rows_;
  const WantedLossGradients& wanted_;
  const at::Tensor& upstream_;
  const RowSums& known_;
  const at::ScalarType precise_;
  const at::TensorOptions options_;  // those of x, with the dtype of computation
  const CrossEntropy of_;
  const LossScales scales_;
  const bool by_kernel_;
  bool is_one_block_ = false;
  bool by_classes_ = false;  // the gradients of x and weight are computed together
  at::Tensor memory_;        // of the scores of each block
  LossPass result_;
};

PreciseRows RowPass::precise_rows(const at::Tensor& scores, const at::Tensor& targets) const {
  const auto classes = scores.size(1);
  const auto first_class = call_.shared ? call_.shared->first : 0;
  PreciseRows rows;
  rows.s = scores.to(precise_);
  if (of_.softcap != 0.0) rows.s = at::tanh(rows.s / of_.softcap) * of_.softcap;
  const auto columns = targets - first_class;
  rows.outside = columns.lt(0).logical_or_(columns.ge(classes));
  rows.columns = columns.masked_fill(rows.outside, 0).unsqueeze(1);
  const auto& weight = of_.class_weight;
  if (weight.defined()) rows.own_weight = weight.narrow(0, first_class, classes);
  rows.numbers.target_weight =
      weight.defined() ? weight.index_select(0, targets) : at::ones_like(targets, options_);
  if (of_.label_smoothing == 0.0) return rows;
  rows.numbers.weight_sum = weight.defined()
                                ? weight.sum()
                                : at::scalar_tensor(static_cast<double>(of_.classes), options_);
  return rows;
}

/// Finds the maxima and sums of rows, over all processes.
void RowPass::sum_rows(PreciseRows& rows, int64_t first) {
  const auto* shared = call_.shared.get();
  auto& numbers = rows.numbers;
  numbers.largest = rows.s.amax(1);
  if (shared != nullptr) shared->reduce_maxima(numbers.largest);
  rows.exponentials = rows.s - numbers.largest.unsqueeze(1);
  const auto target = rows.s.gather(1, rows.columns).squeeze(1).masked_fill_(rows.outside, 0.0);
  std::vector<at::Tensor> sums = {target};
  if (of_.label_smoothing != 0.0) {
    sums.push_back(rows.own_weight.defined() ? rows.exponentials.mv(rows.own_weight)
                                             : rows.exponentials.sum(1));
  }
  rows.exponentials.exp_();
  sums.push_back(rows.exponentials.sum(1));
  const auto all = at::stack(sums);
  if (shared != nullptr) shared->reduce_sums(all);
  numbers.target = all[0];
  numbers.weighted = all[1];  // of no use without label_smoothing
  numbers.exponentials = all[-1];
  if (shared == nullptr) return;
  block_of(result_.sums.largest, first, rows.s.size(0)).copy_(numbers.largest);
  block_of(result_.sums.exponentials, first, rows.s.size(0)).copy_(numbers.exponentials);
}

/// Turns the exponentials of rows into the gradients of their scores.
void RowPass::differentiate(PreciseRows& rows) const {
  const auto factors = factors_of(of_, rows.numbers);
  auto& gradient = rows.exponentials;
  gradient.mul_(factors.of_exponentials.unsqueeze(1));
  if (of_.label_smoothing != 0.0) {
    const auto of_weights = factors.of_weights.unsqueeze(1);
    gradient.sub_(rows.own_weight.defined() ? of_weights * rows.own_weight : of_weights);
  }
  const auto of_target = factors.of_target.neg().masked_fill_(rows.outside, 0.0);
  gradient.scatter_add_(1, rows.columns, of_target.unsqueeze(1));
  if (of_.softcap != 0.0) gradient.mul_(1.0 - (rows.s / of_.softcap).square());
}

void RowPass::compute_by_operators(const at::Tensor& scores, const at::Tensor& targets,
                                   int64_t first) {
  const auto count = scores.size(0);
  auto rows = precise_rows(scores, targets);
  auto& numbers = rows.numbers;
  const auto upstream =
      upstream_.defined() ? block_of(upstream_, first, count) : at::ones({count}, options_);
  numbers.scale = scales_.loss.defined() ? upstream * scales_.loss : upstream;
  numbers.z_scale = scales_.z.defined() ? upstream * scales_.z : upstream;
  const auto ignored = block_of(rows_.ignored, first, count);
  if (known_.largest.defined()) {
    numbers.largest = block_of(known_.largest, first, count);
    numbers.exponentials = block_of(known_.exponentials, first, count);
    rows.exponentials = (rows.s - numbers.largest.unsqueeze(1)).exp_();
  } else {
    sum_rows(rows, first);
    const auto losses = loss_of(of_, numbers);
    block_of(result_.losses, first, count)
        .copy_(ignored.defined() ? losses.masked_fill(ignored, 0.0) : losses);
  }
  if (!wants_gradients()) return;
  differentiate(rows);
  if (ignored.defined()) rows.exponentials.masked_fill_(ignored.unsqueeze(1), 0.0);
  scores.copy_(rows.exponentials);
}

}  // namespace

CountedRows count_rows(const LossCall& call) {
  return call.targets.is_cpu() ? count_on_cpu(call) : count_by_operators(call, precise_dtype(call));
}

CountedRows count_by_operators(const LossCall& call, at::ScalarType dtype) {
  CountedRows counted;
  counted.ignored = call.targets.eq(call.ignore_index);
  counted.targets = call.targets.masked_fill(counted.ignored, 0).contiguous();
  if (call.reduction != LossReduction::mean) return counted;
  const auto counts = counted.ignored.eq(false).to(dtype);
  const auto rows = counts.sum();
  const auto& weight = call.class_weight;
  const auto weights = weight.defined() ? (weight.gather(0, counted.targets) * counts).sum() : rows;
  const auto none = rows.eq(0);
  counted.rows = rows.masked_fill(none, 1);
  counted.weights = weights.masked_fill(none, 1);
  return counted;
}

LossPass pass_over_rows(const LossCall& call, const CountedRows& rows,
                        const WantedLossGradients& wanted, const at::Tensor& upstream,
                        const RowSums& known) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return RowPass(call, rows, wanted, upstream, known).compute();
}

at::Tensor remaining_factor(const LossCall& call, const CountedRows& rows) {
  return divides_at_the_end(call) ? rows.weights.reciprocal() : at::Tensor();
}

ScopedLossBlocks::ScopedLossBlocks(int64_t bytes) : previous_(block_bytes().exchange(bytes)) {}

ScopedLossBlocks::~ScopedLossBlocks() { block_bytes() = previous_; }

}  // namespace heed::detail

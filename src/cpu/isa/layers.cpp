// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/layers.h"

#include "cpu/isa/functions.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/norms.h"
#include "cpu/isa/philox.h"
#include "cpu/isa/row_loops.h"

// The layers around attention: rotary embedding, norms, SwiGLU, dropout and cross entropy. Each
// kernel passes over memory once, where LibTorch's operators make several passes. norms.h has the
// norms.
//
//   rotate, for each pair (x, y):   (x cos - y sin, y cos + x sin)
//     half split:    x0 x1 .. y0 y1 ..          interleaved:    x0 y0 x1 y1 ..
//   swiglu:   y = gate * s * up,   s = sigmoid(gate)
//     backward: dgate = dy * up * s * (1 + gate * (1 - s));   dup = dy * gate * s
//     in another form:   y = x * s * (u + offset),   s = sigmoid(beta * x)
//       x = min(gate, limit),   u = up within [-limit, limit];   gradients are 0 beyond the limit
//   weigh_rows:   y = sum over k of weight[k] * row[k]
//     backward: drow[k] = weight[k] * dy;   dweight[k] = sum of dy * row[k]
//   drop_out, for each 64 elements:   y = word >= threshold ? x * scale : 0
//   sum_scores, for a row:   m = max s,   sum of e^(s - m),   sum of w (s - m)
//     s = softcap tanh(score / softcap)
//   score_gradients:   dscore = ds * (1 - (s / softcap)^2),   f = factors
//     ds = f.of_exponentials * e^(s - m) - f.of_weights * w - f.of_target, the last at the target
//
// See docs/kernels.md, "Layers".

namespace heed::detail::HEED_ISA {

namespace {

/// The pairs in 16 bytes: heads of a small model have fewer pairs than a vector has lanes.
template <typename T>
constexpr int64_t kFewPairs = 16 / sizeof(T);

/// Rotates kFewPairs pairs from pair i on.
template <typename T>
inline void rotate_few(const T* from, const RowAngles<T>& angles, int64_t i, T direction, T* to) {
  typedef T Few __attribute__((vector_size(16)));
  const auto load_few = [](const T* numbers) {
    Few few;
    __builtin_memcpy(&few, numbers, sizeof(few));
    return few;
  };
  const Few first = load_few(from + i), second = load_few(from + angles.pairs + i);
  const Few cos = load_few(angles.cos + i), sin = direction * load_few(angles.sin + i);
  const Few turned[] = {first * cos - second * sin, second * cos + first * sin};
  __builtin_memcpy(to + i, &turned[0], sizeof(Few));
  __builtin_memcpy(to + angles.pairs + i, &turned[1], sizeof(Few));
}

template <typename T, typename Element>
void rotate_half_split(const Element* from, const RowAngles<T>& angles, Element* to) {
  const auto pairs = angles.pairs;
  const T direction = angles.back ? -1 : 1;
  int64_t i = 0;
  for (; i + kLanes<T> <= pairs; i += kLanes<T>) {
    const auto first = load(from + i), second = load(from + pairs + i);
    const auto cos = load(angles.cos + i), sin = direction * load(angles.sin + i);
    store(to + i, first * cos - second * sin);
    store(to + pairs + i, second * cos + first * sin);
  }
  if constexpr (kSame<T, Element>) {
    for (; i + kFewPairs<T> <= pairs; i += kFewPairs<T>) {
      rotate_few(from, angles, i, direction, to);
    }
  }
  for (; i < pairs; ++i) {
    const T first = widen(from[i]), second = widen(from[pairs + i]);
    const T cos = angles.cos[i], sin = direction * angles.sin[i];
    narrow(first * cos - second * sin, to + i);
    narrow(second * cos + first * sin, to + pairs + i);
  }
}

template <typename T, typename Element>
void rotate_interleaved(const Element* from, const RowAngles<T>& angles, Element* to) {
  const T direction = angles.back ? -1 : 1;
  for (int64_t i = 0; i < angles.pairs; ++i) {
    const T first = widen(from[2 * i]), second = widen(from[2 * i + 1]);
    const T cos = angles.cos[i], sin = direction * angles.sin[i];
    narrow(first * cos - second * sin, to + 2 * i);
    narrow(second * cos + first * sin, to + 2 * i + 1);
  }
}

template <typename T, typename Element>
void rotate_rows(const Rows& from, const RowAngles<T>& angles, const Rows& to) {
  for (int64_t r = 0; r < from.count; ++r) {
    const auto* source = row_of<Element>(from, r);
    auto* target = row_of<Element>(to, r);
    if (angles.interleaved) {
      rotate_interleaved(source, angles, target);
    } else {
      rotate_half_split(source, angles, target);
    }
    for (int64_t i = 2 * angles.pairs; i < from.columns; ++i) target[i] = source[i];
  }
}

template <typename T, typename Element>
void add_rows(const Rows& a, const Rows& b, const Rows& to) {
  for (int64_t r = 0; r < to.count; ++r) {
    const auto *x = row_of<const Element>(a, r), *y = row_of<const Element>(b, r);
    auto* sum = row_of<Element>(to, r);
    for_vectors<T, Element>(to.columns, [&](const auto& load_from, const auto& store_to) {
      store_to(sum, load_from(x) + load_from(y));
    });
  }
}

template <typename T, typename Element>
void swiglu_rows(const Rows& gates, const Rows& ups, const Rows& to) {
  for (int64_t r = 0; r < gates.count; ++r) {
    const auto *gate = row_of<const Element>(gates, r), *up = row_of<const Element>(ups, r);
    auto* y = row_of<Element>(to, r);
    for_vectors<T, Element>(gates.columns, [&](const auto& load_from, const auto& store_to) {
      const Vec<T> x = load_from(gate);
      store_to(y, x / (1 + exp(-x)) * load_from(up));
    });
  }
}

template <typename T, typename Element>
void swiglu_backward_rows(const Rows& gates, const Rows& ups, const Rows& output_gradient,
                          const Rows& gate_gradient, const Rows& up_gradient) {
  for (int64_t r = 0; r < gates.count; ++r) {
    const auto *gate = row_of<const Element>(gates, r), *up = row_of<const Element>(ups, r);
    const auto* gradient = row_of<const Element>(output_gradient, r);
    auto *of_gate = row_of<Element>(gate_gradient, r), *of_up = row_of<Element>(up_gradient, r);
    for_vectors<T, Element>(gates.columns, [&](const auto& load_from, const auto& store_to) {
      const Vec<T> x = load_from(gate), g = load_from(gradient);
      const auto sigmoid = 1 / (1 + exp(-x));
      store_to(of_gate, g * load_from(up) * sigmoid * (1 + x * (1 - sigmoid)));
      store_to(of_up, g * x * sigmoid);
    });
  }
}

bool is_silu(const SwiGluForm& form) {
  return form.beta == 1.0 && form.limit == __builtin_inf() && form.offset == 0.0;
}

/// x, where it is at most `limit`, or from -limit to limit; the nearest limit elsewhere. NaN stays.
/// @{
template <typename T>
inline Vec<T> at_most(Vec<T> x, Vec<T> limit) {
  return x > limit ? limit : x;
}
template <typename T>
inline Vec<T> within(Vec<T> x, Vec<T> limit) {
  return x < -limit ? -limit : at_most<T>(x, limit);
}
/// @}

template <typename T, typename Element>
void formed_swiglu_rows(const Rows& gates, const Rows& ups, const SwiGluForm& form,
                        const Rows& to) {
  const auto limit = broadcast(static_cast<T>(form.limit));
  const auto beta = static_cast<T>(form.beta), offset = static_cast<T>(form.offset);
  for (int64_t r = 0; r < gates.count; ++r) {
    const auto *gate = row_of<const Element>(gates, r), *up = row_of<const Element>(ups, r);
    auto* y = row_of<Element>(to, r);
    for_vectors<T, Element>(gates.columns, [&](const auto& load_from, const auto& store_to) {
      const auto x = at_most<T>(load_from(gate), limit), u = within<T>(load_from(up), limit);
      store_to(y, x / (1 + exp(-beta * x)) * (u + offset));
    });
  }
}

template <typename T, typename Element>
void formed_swiglu_backward_rows(const Rows& gates, const Rows& ups, const SwiGluForm& form,
                                 const Rows& output_gradient, const Rows& gate_gradient,
                                 const Rows& up_gradient) {
  const auto limit = broadcast(static_cast<T>(form.limit));
  const auto beta = static_cast<T>(form.beta), offset = static_cast<T>(form.offset);
  const Vec<T> none = {};
  for (int64_t r = 0; r < gates.count; ++r) {
    const auto *gate = row_of<const Element>(gates, r), *up = row_of<const Element>(ups, r);
    const auto* gradient = row_of<const Element>(output_gradient, r);
    auto *of_gate = row_of<Element>(gate_gradient, r), *of_up = row_of<Element>(up_gradient, r);
    for_vectors<T, Element>(gates.columns, [&](const auto& load_from, const auto& store_to) {
      const Vec<T> given = load_from(gate), factor = load_from(up), g = load_from(gradient);
      const auto x = at_most<T>(given, limit), u = within<T>(factor, limit);
      const Vec<T> sigmoid = 1 / (1 + exp(-beta * x));
      const Vec<T> slope = g * (u + offset) * sigmoid * (1 + beta * x * (1 - sigmoid));
      const Vec<T> of_factor = g * x * sigmoid;
      store_to(of_gate, given > limit ? none : slope);
      store_to(of_up, factor > limit || factor < -limit ? none : of_factor);
    });
  }
}

template <typename T, typename Element>
void weigh(const WeighedRows<T>& from, const Rows& to) {
  auto* y = row_of<Element>(to, 0);
  for_vectors<T, Element>(to.columns, [&](const auto& load_from, const auto& store_to) {
    Vec<T> sum = {};
    for (int64_t k = 0; k < from.count; ++k) {
      const Vec<T> x = load_from(static_cast<const Element*>(from.rows[k]));
      sum += from.weights ? from.weights[k] * x : x;
    }
    store_to(y, sum);
  });
}

template <typename T, typename Element>
void weigh_backward(const WeighedRows<T>& from, const Rows& output_gradient,
                    void* const* row_gradients, T* weight_gradients) {
  const auto* gradient = row_of<const Element>(output_gradient, 0);
  const auto columns = output_gradient.columns;
  for (int64_t k = 0; k < from.count; ++k) {
    const auto* x = static_cast<const Element*>(from.rows[k]);
    auto* of_row = static_cast<Element*>(row_gradients[k]);
    const T weight = from.weights[k];
    for_vectors<T, Element>(columns, [&](const auto& load_from, const auto& store_to) {
      store_to(of_row, weight * load_from(gradient));
    });
    weight_gradients[k] = sum_over<T>(
        columns, [&](int64_t i) { return load(gradient + i) * load(x + i); },
        [&](int64_t i) { return T{widen(gradient[i])} * T{widen(x[i])}; });
  }
}

template <typename T, typename Element>
void drop_out_row(const Rows& row, const ElementDraws& draws, T scale, const Rows& to) {
  constexpr int64_t kBlocksOfIndex = int64_t{1} << 28;  // their counters have 32 bits
  const auto* from = row_of<const Element>(row, 0);
  auto* y = row_of<Element>(to, 0);
  uint32_t words[kDrawBlock];
  for (int64_t first = 0; first < row.columns; first += kDrawBlock) {
    const auto block = (draws.first + first) / kDrawBlock;
    draw_words(draws.key, /*head=*/0, static_cast<uint32_t>(block / kBlocksOfIndex),
               block % kBlocksOfIndex, 1, words);
    const auto left = row.columns - first, count = left < kDrawBlock ? left : kDrawBlock;
    int64_t i = 0;
    for (; i + kLanes<T> <= count; i += kLanes<T>) {
      store(y + first + i, kept(words + i, draws.threshold, load(from + first + i) * scale));
    }
    for (; i < count; ++i) {
      const T x = widen(from[first + i]) * scale;
      narrow(words[i] >= draws.threshold ? x : T{}, y + first + i);
    }
  }
}

template <typename T>
inline Vec<T> capped(Vec<T> score, T softcap) {
  return softcap == 0 ? score : tanh(score / softcap) * softcap;
}

template <typename T, typename Element>
inline Vec<T> in_all_lanes(const Element* from) {
  return broadcast(T{widen(*from)});
}

/// The largest element of a row; NaN is ignored.
template <typename T, typename Element>
inline T largest_of(const Element* row, int64_t columns) {
  auto lanes = broadcast(-static_cast<T>(__builtin_inf()));
  int64_t i = 0;
  for (; i + kLanes<T> <= columns; i += kLanes<T>) lanes = larger<T>(lanes, load(row + i));
  for (; i < columns; ++i) lanes = larger<T>(lanes, in_all_lanes<T>(row + i));
  return reduce<T>(lanes, [](Vec<T> a, Vec<T> b) { return larger<T>(a, b); });
}

template <typename T, typename Element>
ScoreSums<T> sums_of_row(const Element* row, int64_t columns, const ScoredClasses<T>& classes,
                         int64_t target) {
  const T cap = classes.softcap;
  const auto capped_one = [cap](T score) { return T{capped<T>(broadcast(score), cap)[0]}; };
  ScoreSums<T> sums = {};
  const T m = sums.largest = capped_one(largest_of<T>(row, columns));
  sums.exponentials = sum_over<T>(
      columns, [&](int64_t i) { return exp(capped<T>(load(row + i), cap) - m); },
      [&](int64_t i) { return exp(capped<T>(in_all_lanes<T>(row + i), cap) - m)[0]; });
  sums.target = capped_one(T{widen(row[target])});
  if (!classes.weighted) return sums;
  const auto* weight = classes.weight;
  sums.weighted = sum_over<T>(
      columns,
      [&](int64_t i) {
        const Vec<T> below = capped<T>(load(row + i), cap) - m;
        return weight == nullptr ? below : below * load(weight + i);
      },
      [&](int64_t i) {
        const T below = capped<T>(in_all_lanes<T>(row + i), cap)[0] - m;
        return weight == nullptr ? below : below * weight[i];
      });
  return sums;
}

template <typename T, typename Element>
void gradients_of_row(Element* row, int64_t columns, const ScoredClasses<T>& classes,
                      int64_t target, T largest, const ScoreFactors<T>& factors) {
  const T cap = classes.softcap;
  const auto* weight = factors.of_weights == 0 ? nullptr : classes.weight;
  const auto gradient = [&](Vec<T> score, Vec<T> subtracted) {
    if (cap == 0) return exp(score - largest) * factors.of_exponentials - subtracted;
    const Vec<T> share = tanh(score / cap);
    return (exp(share * cap - largest) * factors.of_exponentials - subtracted) *
           (1 - share * share);
  };
  const auto gradient_of_one = [&](int64_t i, T subtracted) {
    return T{gradient(in_all_lanes<T>(row + i), broadcast(subtracted))[0]};
  };
  const auto of_weight = [&](int64_t i) {
    return factors.of_weights * (weight == nullptr ? 1 : weight[i]);
  };
  const T of_target = gradient_of_one(target, of_weight(target) + factors.of_target);
  int64_t i = 0;
  for (; i + kLanes<T> <= columns; i += kLanes<T>) {
    const Vec<T> subtracted =
        weight == nullptr ? broadcast(factors.of_weights) : load(weight + i) * factors.of_weights;
    store(row + i, gradient(load(row + i), subtracted));
  }
  for (; i < columns; ++i) narrow(gradient_of_one(i, of_weight(i)), row + i);
  narrow(of_target, row + target);
}

template <typename T>
void rotate(const Rows& from, const RowAngles<T>& angles, const Rows& to) {
  with_element_of<T>(from.type,
                     [&](auto element) { rotate_rows<T, decltype(element)>(from, angles, to); });
}

/// Calls run(Element{}, Weight{}) with the element types of the rows and of the weight.
template <typename T, typename Run>
void with_elements(const Rows& rows, const NormScale<T>& scale, const Run& run) {
  with_element_of<T>(rows.type, [&](auto element) {
    if (scale.precise) {
      run(element, T{});
    } else {
      run(element, element);
    }
  });
}

template <typename T>
void rms_norm(const Rows& from, const NormScale<T>& scale, const Rows& to) {
  with_elements(from, scale, [&](auto element, auto of_weight) {
    rms_norm_rows<T, decltype(element), decltype(of_weight)>(from, scale, to);
  });
}

template <typename T>
void layer_norm(const Rows& from, const NormScale<T>& scale, const void* bias, const Rows& to) {
  with_elements(from, scale, [&](auto element, auto of_weight) {
    using Weight = decltype(of_weight);
    layer_norm_rows<T, decltype(element)>(from, scale, static_cast<const Weight*>(bias), to);
  });
}

template <typename T>
void add(const Rows& a, const Rows& b, const Rows& to) {
  with_element_of<T>(to.type, [&](auto element) { add_rows<T, decltype(element)>(a, b, to); });
}

template <typename T>
void rms_norm_backward(const Rows& from, const Rows& output_gradient, const NormScale<T>& scale,
                       const Rows& to, T* weight_gradient) {
  with_elements(from, scale, [&](auto element, auto of_weight) {
    rms_norm_backward_rows<T, decltype(element), decltype(of_weight)>(from, output_gradient, scale,
                                                                      to, weight_gradient);
  });
}

template <typename T>
void swiglu(const Rows& gate, const Rows& up, const SwiGluForm& form, const Rows& to) {
  with_element_of<T>(gate.type, [&](auto element) {
    using Element = decltype(element);
    if (is_silu(form)) return swiglu_rows<T, Element>(gate, up, to);
    formed_swiglu_rows<T, Element>(gate, up, form, to);
  });
}

template <typename T>
void swiglu_backward(const Rows& gate, const Rows& up, const SwiGluForm& form,
                     const Rows& output_gradient, const Rows& gate_gradient,
                     const Rows& up_gradient) {
  with_element_of<T>(gate.type, [&](auto element) {
    using Element = decltype(element);
    if (is_silu(form)) {
      return swiglu_backward_rows<T, Element>(gate, up, output_gradient, gate_gradient,
                                              up_gradient);
    }
    formed_swiglu_backward_rows<T, Element>(gate, up, form, output_gradient, gate_gradient,
                                            up_gradient);
  });
}

template <typename T>
void weigh_rows(const WeighedRows<T>& from, const Rows& to) {
  with_element_of<T>(to.type, [&](auto element) { weigh<T, decltype(element)>(from, to); });
}

template <typename T>
void weigh_rows_backward(const WeighedRows<T>& from, const Rows& output_gradient,
                         void* const* row_gradients, T* weight_gradients) {
  with_element_of<T>(output_gradient.type, [&](auto element) {
    weigh_backward<T, decltype(element)>(from, output_gradient, row_gradients, weight_gradients);
  });
}

template <typename T>
void drop_out(const Rows& from, const ElementDraws& draws, double scale, const Rows& to) {
  with_element_of<T>(from.type, [&](auto element) {
    drop_out_row<T, decltype(element)>(from, draws, static_cast<T>(scale), to);
  });
}

template <typename T>
ScoreSums<T> sum_scores(const Rows& scores, const ScoredClasses<T>& classes, int64_t target) {
  ScoreSums<T> sums = {};
  with_element_of<T>(scores.type, [&](auto element) {
    sums = sums_of_row<T>(row_of<decltype(element)>(scores, 0), scores.columns, classes, target);
  });
  return sums;
}

template <typename T>
void score_gradients(const Rows& scores, const ScoredClasses<T>& classes, int64_t target, T largest,
                     const ScoreFactors<T>& factors) {
  with_element_of<T>(scores.type, [&](auto element) {
    gradients_of_row<T>(row_of<decltype(element)>(scores, 0), scores.columns, classes, target,
                        largest, factors);
  });
}

template <typename T>
constexpr LayerKernelsOf<T> kKernels = {
    rotate<T>,     rms_norm<T>,        layer_norm<T>, rms_norm_backward<T>,   add<T>,
    swiglu<T>,     swiglu_backward<T>, weigh_rows<T>, weigh_rows_backward<T>, drop_out<T>,
    sum_scores<T>, score_gradients<T>};

}  // namespace

const LayerKernels layer_kernels = {kKernels<float>, kKernels<double>};

}  // namespace heed::detail::HEED_ISA

// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iterator>
#include <random>

#include "attend_case.h"
#include "support/layouts.h"

namespace heed::fuzz {

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  /// 0 to n - 1. Not of std::uniform_int_distribution, which differs between standard libraries.
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  /// The first choice more often than not.
  int64_t rarely(int64_t n) { return one_in(3) ? below(n) : 0; }
  /// Short lengths, those about the width of a vector or a tile, and now and then 0.
  int64_t size() {
    if (one_in(30)) return 0;
    if (one_in(6)) return 1;
    return one_in(4) ? 10 + below(61) : 2 + below(8);
  }
  int64_t positive_size() { return std::max<int64_t>(size(), 1); }

 private:
  std::mt19937_64 engine_;
};

/// Targets that take a millisecond and more are rare.
int64_t draw_target(Draw& draw) {
  constexpr struct {
    Target target;
    int64_t weight;
  } kDrawn[] = {{kAttend, 24},       {kAttendWithWeights, 12},
                {kAttendVarlen, 12}, {kMultiHead, 8},
                {kGroupQuery, 8},    {kCached, 8},
                {kMaskBuilder, 12},  {kFar, 2},
                {kDerivative, 6},    {kTraining, 3},
                {kKVCache, 6},       {kFile, 2},
                {kPaged, 16},        {kPagedCache, 4},
                {kRotary, 4},        {kRotaryCache, 3},
                {kLoss, 4},          {kPacked, 4}};
  auto rest = draw.below(138);
  for (const auto& [target, weight] : kDrawn) {
    if (rest < weight) return target;
    rest -= weight;
  }
  return kAttend;
}

bool is_attend(const Case& c) { return c.target <= kAttendVarlen; }
bool is_module(const Case& c) { return c.target >= kMultiHead && c.target <= kCached; }

/// Keeps the reference's scalar loops and a module's matrices to about a millisecond.
void limit_work(Case& c) {
  const auto work = [&] {
    return c.B * c.H * c.L * c.S * (c.D + c.Dv) + (is_module(c) ? c.H * c.H * c.D * c.D * 4 : 0);
  };
  while (work() > 200'000) {
    int64_t* const sizes[] = {&c.L, &c.S, &c.D, &c.Dv, &c.B};
    int64_t& largest =
        **std::max_element(std::begin(sizes), std::end(sizes),
                           [](const int64_t* a, const int64_t* b) { return *a < *b; });
    largest = (largest + 1) / 2;
    if (largest == 1) return;
  }
}

void draw_sizes(Draw& draw, Case& c) {
  c.B = draw.one_in(25) ? 0 : 1 + draw.below(3);
  c.G = 1 + draw.below(3);
  c.H = c.G * (1 + draw.below(4));
  c.L = draw.size();
  c.S = draw.one_in(2) ? c.L : draw.size();
  c.D = draw.positive_size();
  c.Dv = draw.one_in(2) ? c.D : draw.size();
  if (is_module(c)) c.Dv = std::max<int64_t>(c.Dv, 1);
  limit_work(c);
}

void draw_tensors(Draw& draw, Case& c) {
  c.dtype = draw.one_in(2) ? 0 : draw.below(4);
  c.query_layout = draw.rarely(test::kLayouts);
  c.key_layout = draw.rarely(test::kLayouts);
  c.value_layout = draw.rarely(test::kLayouts);
  if (draw.one_in(3)) {
    c.mask = 1 + draw.below(8);
    c.mask_dtype = draw.rarely(4);
    c.mask_fill = draw.rarely(6);
    c.mask_layout = draw.rarely(test::kLayouts);
    c.by_rule = draw.rarely(2);
  }
  if (draw.one_in(4)) {
    c.bias = 1 + draw.below(8);
    c.bias_dtype = draw.rarely(4);
    c.bias_fill = draw.rarely(4);
    c.bias_layout = draw.rarely(test::kLayouts);
  }
  if (draw.one_in(6)) c.documents = 1 + draw.below(4);
  if (draw.one_in(3)) c.poison = 1 + draw.below(3);
  if (draw.one_in(3)) c.grad = draw.one_in(2) ? 0b111 : draw.below(1 << kVictims) & 0b101110111;
  c.inference = draw.one_in(8) ? 1 + draw.below(3) : 0;
  c.device = is_attend(c) && draw.one_in(25);
}

void draw_options(Draw& draw, Case& c) {
  c.causal = draw.one_in(3);
  if (draw.one_in(4)) c.window = 1 + draw.below(6);
  if (draw.one_in(4)) c.scale = 1 + draw.below(5);
  if (draw.one_in(12)) c.dropout = draw.one_in(3) ? 5 + draw.below(2) : 1;
  if (draw.one_in(8)) c.softcap = 1 + draw.below(2);
  if (draw.one_in(8)) c.alibi = 1 + draw.below(2);
  if (draw.one_in(8)) c.sinks = 1 + draw.below(3);
  if (draw.one_in(3)) c.path = draw.below(3);
  if (draw.one_in(3)) c.capability = draw.below(3);
  c.small_tiles = draw.one_in(4);
  c.ragged = draw.one_in(2);
}

/// Draws what a query reaches, and biases by distance. Windows are given once.
void draw_reach(Draw& draw, Case& c) {
  if (draw.one_in(5)) c.left = 1 + draw.below(6);
  if (draw.one_in(5)) c.right = 1 + draw.below(6);
  if (c.left > 0 || c.right > 0) c.window = 0;
  if (draw.one_in(6)) {
    c.relative = 1 + draw.below(5);
    c.relative_dtype = draw.rarely(4);
    c.relative_fill = draw.one_in(5);
  }
  c.lse = draw.one_in(4);
  c.short_offsets = draw.one_in(4);
  if (c.target == kPaged) return;
  c.top_left = draw.one_in(8);
  if (c.target == kAttendVarlen) return;
  c.alibi_rows = draw.one_in(2);
  if (draw.one_in(8)) c.global = 1 + draw.below(2);
  if (draw.one_in(8)) c.lengths = 1 + draw.below(3);
  const bool may_exist = c.L <= c.S && c.lengths == 0;
  if (c.relative > 0 && draw.one_in(may_exist ? 2 : 20)) c.relative_positions = 1 + draw.below(2);
  if ((c.mask == 0 && c.bias == 0) || !draw.one_in(4)) return;
  c.mask_batch = 1 + draw.below(2);
  c.B = 2 * (1 + draw.below(3));
  limit_work(c);
  c.batches = c.B % 2 == 0 ? 1 + draw.below(2) : 1;
}

constexpr void (*kExtremes[])(Draw& draw, Case& c) = {
    [](Draw& draw, Case& c) { c.scale = 9 + draw.below(5); },
    [](Draw& draw, Case& c) { c.softcap = 9 + draw.below(6); },
    [](Draw& draw, Case& c) {
      c.sinks = 1 + draw.below(3);
      c.sinks_fill = 1 + draw.below(8);
    },
    [](Draw& draw, Case& c) {
      c.alibi = 1 + draw.below(2);
      c.slopes_fill = 3 + draw.below(6);
    },
    [](Draw& draw, Case& c) { c.window = 10 + draw.below(2); },
    [](Draw& draw, Case& c) {
      c.mean = is_attend(c) ? 1 + draw.below(4) : 0;
      c.dropout = 0;
      c.grad |= 0b111;
    },
};

void draw_module(Draw& draw, Case& c) {
  c.head_dim = draw.one_in(3);
  if (draw.one_in(4)) c.E = c.head_dim ? 1 + draw.below(20) : c.H * (1 + draw.below(4));
  if (draw.one_in(5)) c.key_dim = 1 + draw.below(20);
  if (draw.one_in(5)) c.value_dim = 1 + draw.below(20);
  if (draw.one_in(3)) c.rotary = 1 + draw.below(3);
  if (draw.one_in(4)) c.qk_norm = 1 + draw.below(4);
  if (c.rotary > 0 && c.D % 2 != 0) ++c.D;
  c.no_input_bias = draw.one_in(4);
  c.no_output_bias = draw.one_in(4);
  c.training = draw.one_in(3);
  c.cross = c.key_dim > 0 || c.value_dim > 0 || draw.one_in(2);
  c.weights = draw.one_in(3);
  if (draw.one_in(5)) c.left = 1 + draw.below(6);
  const bool both_sides = c.target != kCached || draw.one_in(20);
  if (both_sides && draw.one_in(5)) c.right = 1 + draw.below(6);
  if (both_sides) c.top_left = draw.one_in(8);
  if (c.left > 0 || c.right > 0) c.window = 0;
  if (c.target != kCached) return;
  if (draw.one_in(4)) c.relative = 1 + draw.below(5);
  c.inference = draw.one_in(20) ? 0 : 1 + draw.below(2);
  c.chunk = draw.one_in(3) ? 0 : 1 + draw.below(5);
  c.cache_window = (c.window > 0 || c.left > 0) && draw.one_in(2);
  c.capacity = draw.one_in(3) ? 1 + draw.below(c.L + 8) : 0;
}

/// Draws the fields that the checks after kMaskBuilder read.
void draw_others(Draw& draw, Case& c) {
  c.builder = draw.below(2);
  c.far = 1 + draw.below(3);
  c.steps = 1 + draw.below(c.target == kTraining ? 2 : 12);
  c.place = draw.below(16);
  c.weights = draw.one_in(2);
  c.training = !draw.one_in(4);
  c.cross = draw.one_in(4);
  c.capacity = 1 + draw.below(12);
  c.cache_window = draw.one_in(2);
}

void draw_training(Draw& draw, Case& c) {
  c.grad = draw.below(1 << kVictims);
  c.change = draw.below(4);
  c.edit = draw.one_in(2) ? 1 + draw.below(6) : 0;
  c.hooks = draw.rarely(3);
  c.frozen = draw.rarely(4);
  c.twice = draw.rarely(4);
  c.asked = draw.one_in(4);
  c.norm = draw.below(4);
}

void draw_file(Draw& draw, Case& c) {
  if (draw.one_in(2)) c.place = 0;
  c.names = draw.one_in(4) ? 0 : 1 + draw.below(6);
  c.mapped = draw.one_in(4);
}

void draw_rotary(Draw& draw, Case& c) {
  c.scaling = draw.one_in(3) ? draw.below(8) : 3 + 4 * draw.below(2);
  c.trained = 4 + draw.below(13);
  c.rotary = 1 + draw.below(3);
  c.page = draw.below(3);
}

/// Most calls without what attend_paged does not take.
void draw_pages(Draw& draw, Case& c) {
  if (!draw.one_in(20)) c.mask = c.bias = c.documents = c.dropout = 0;
  c.inference = draw.one_in(20) ? 0 : 1 + draw.below(2);
  c.page = draw.below(3);
  c.shared = draw.one_in(3) ? 1 + draw.below(2) : 0;
  c.draft = draw.one_in(4) ? 1 + draw.below(2) : 0;
  c.int8 = draw.one_in(3);
  if (c.draft > 0 && !draw.one_in(20)) c.alibi = c.right = c.relative = 0;
}

/// Any victim and defect is the most likely one.
constexpr void (*kMistakes[])(Draw& draw, Case& c) = {
    [](Draw& draw, Case& c) { c.dtype = 4 + draw.below(3); },
    [](Draw& draw, Case& c) { c.key_dtype = 1 + draw.below(6); },
    [](Draw& draw, Case& c) { c.value_dtype = 1 + draw.below(6); },
    [](Draw& draw, Case& c) { c.mask = 9 + draw.below(3); },
    [](Draw& draw, Case& c) {
      c.mask = 1 + draw.below(8);
      c.mask_dtype = 4 + draw.below(2);
    },
    [](Draw& draw, Case& c) {
      c.bias = 1 + draw.below(11);
      c.bias_dtype = draw.below(6);
    },
    [](Draw& draw, Case& c) { c.window = 7 + draw.below(3); },
    [](Draw& draw, Case& c) { (draw.one_in(2) ? c.scale : c.softcap) = 6 + draw.below(3); },
    [](Draw& draw, Case& c) {
      c.dropout = 2 + draw.below(3);
      c.training = 1;
    },
    [](Draw& draw, Case& c) {
      c.H = draw.below(7);
      c.G = draw.below(4);
    },
    [](Draw& draw, Case& c) {
      (draw.one_in(2) ? c.D : c.E) = draw.below(8);
      c.head_dim = draw.below(3);
      c.rotary = draw.below(5);
      c.qk_norm = draw.below(6);
    },
    [](Draw& draw, Case& c) { (draw.one_in(2) ? c.left : c.right) = 7 + draw.below(2); },
    [](Draw& draw, Case& c) {
      (draw.one_in(2) ? c.left : c.right) = 1 + draw.below(6);
      c.window = 1 + draw.below(6);
    },
    [](Draw& draw, Case& c) { c.global = 1 + draw.below(4); },
    [](Draw& draw, Case& c) { c.lengths = 1 + draw.below(7); },
    [](Draw& draw, Case& c) {
      c.relative = 1 + draw.below(5);
      c.relative_dtype = draw.below(6);
    },
    [](Draw& draw, Case& c) { c.relative_positions = 1 + draw.below(4); },
    [](Draw& draw, Case& c) {
      c.mask = 2 + draw.below(7);
      c.mask_batch = 1 + draw.below(2);
      c.batches = 1 + draw.below(4);
    },
    [](Draw& draw, Case& c) {
      c.top_left = 1;
      c.alibi = draw.below(3);
      c.alibi_rows = draw.below(2);
    },
    [](Draw& draw, Case& c) {
      c.victim = c.target == kMaskBuilder ? kQuery : draw.below(kVictims);
      c.defect = 1 + draw.below(kDefects - 1);
    },
};

void make_a_mistake(Draw& draw, Case& c) {
  const auto last = static_cast<int64_t>(std::size(kMistakes)) - 1;
  kMistakes[std::min(draw.below(last + 6), last)](draw, c);
}

}  // namespace

Case random_case(uint64_t seed) {
  Draw draw(seed);
  Case c;
  c.target = draw_target(draw);
  c.seed = draw.below(1000);
  draw_sizes(draw, c);
  draw_tensors(draw, c);
  draw_options(draw, c);
  if (is_attend(c) || c.target == kDerivative || c.target == kPaged) draw_reach(draw, c);
  if (is_module(c)) draw_module(draw, c);
  if (draw.one_in(6)) kExtremes[draw.below(6)](draw, c);
  if (c.target == kMaskBuilder) c.builder = draw.below(8);
  if (c.target > kMaskBuilder) draw_others(draw, c);
  if (c.target == kTraining) draw_training(draw, c);
  if (c.target == kFile) draw_file(draw, c);
  if (c.target == kPaged || c.target == kPagedCache) draw_pages(draw, c);
  if (c.target == kRotary || c.target == kRotaryCache) draw_rotary(draw, c);
  if (draw.one_in(3)) make_a_mistake(draw, c);
  if (draw.one_in(20)) make_a_mistake(draw, c);
  return c;
}

}  // namespace heed::fuzz

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>

#include <cstdint>
#include <optional>

#include "attend_case.h"
#include "support/inputs.h"

namespace heed::fuzz {

/// The parts that the two modules have in common.
struct Parts {
  torch::nn::Linear fc_q, fc_k, fc_v, fc_out;
  Norm q_norm, k_norm;
  at::Tensor sinks;
  int64_t groups;
};

inline Parts parts_of(const MultiHeadAttention& module) {
  return {module->fc_q,   module->fc_k,   module->fc_v,  module->fc_out,
          module->q_norm, module->k_norm, module->sinks, module->options.head_nums()};
}

inline Parts parts_of(const GroupQueryAttention& module) {
  return {module->fc_q,   module->fc_k,   module->fc_v,  module->fc_o,
          module->q_norm, module->k_norm, module->sinks, module->options.group_num()};
}

/// E, and D: 0 where there is none.
int64_t width(const Case& c);
int64_t head_dim(const Case& c);

/// Both draw the values of norms and sinks, and throw as the modules do.
MultiHeadAttention make_multi_head(const Case& c);
GroupQueryAttention make_group_query(const Case& c);
bool has_valid_module_options(const Case& c);

/// Whether `input` has the shape [B, L, the linear's own] and its dtype.
bool is_input(const at::Tensor& input, const torch::nn::Linear& linear);

/// Whether the options are numbers in what the input's dtype is computed in.
bool can_compute(const Case& c, const at::Tensor& input);

struct Sources {
  at::Tensor query, key, value;
};

/// Heads in float64, and how much their normalization enlarges an error.
struct Heads64 {
  test::Inputs heads;
  double gain = 1.0;
};

Heads64 heads_of(const Case& c, const Parts& parts, const Sources& sources);

/// The options that the module gives attend.
AttendOptions call_options(const Case& c, const Parts& parts,
                           const std::optional<at::Tensor>& mask = {});

/// Projections in half precision round queries, keys, values and the output once each; their
/// errors are multiplied by `gain` in a normalization and by the key's size in a score. float32
/// angles, also a float64 module's, are off by a position's roundoff.
double module_tolerance(const Case& c, at::ScalarType dtype, const Heads64& heads);

}  // namespace heed::fuzz

// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "modules/layers/linear.h"
#include "peers.h"
#include "rows.h"
#include "support/limits.h"

namespace heed::bench {

namespace {

constexpr int64_t kHeads = 8;
constexpr int64_t kGroups = 2;

struct Size {
  int64_t L, E;
};

/// Never slower, and twice as fast where scores outweigh projections.
double target(const Size& size) { return size.L >= 1024 ? 2.0 : 1.0; }

/// A module's target beside its products and `attend` alone, as a part of their speed.
constexpr double kOfParts = 1.0 / 1.15;

/// A module of ours and the peers that compute the same from the same x.
template <typename Ours, typename Textbook>
struct Modules {
  Ours ours;
  Textbook textbook;
  torch::nn::MultiheadAttention torch_module;
  at::Tensor x;                // [1, L, E]
  at::Tensor x_length_first;   // [L, 1, E], as torch::nn::MultiheadAttention takes it
  at::Tensor output_gradient;  // [1, L, E]
  std::optional<at::Tensor> mask;
};

/// A kind of module: its name, how it is made, and what its projections cost.
template <typename Ours, typename Textbook>
struct Kind {
  const char* name;
  std::function<Ours(int64_t E)> make;
  double weights;             // numbers in its projections' weights, in units of E * E
  double short_target = 1.0;  // of 50 tokens of 128, against torch::nn::MultiheadAttention

  Modules<Ours, Textbook> inputs(const Size& size, bool training) const {
    auto ours = make(size.E);
    ours->train(training);
    const auto x = at::randn({1, size.L, size.E});
    return {ours,
            Textbook(ours),
            torch_peer(ours),
            x.clone().requires_grad_(training),
            x.transpose(0, 1).contiguous(),
            at::randn({1, size.L, size.E}),
            {}};
  }

  double flops(const Size& size) const {
    const auto length = static_cast<double>(size.L);
    const auto width = static_cast<double>(size.E);
    return 2.0 * length * weights * width * width + 4.0 * length * length * width;
  }
};

using MultiHeadModules = Modules<MultiHeadAttention, TextbookMultiHeadAttention>;
using MultiHeadKind = Kind<MultiHeadAttention, TextbookMultiHeadAttention>;

MultiHeadKind multi_head(double dropout) {
  return {"MultiHeadAttention",
          [dropout](int64_t E) { return MultiHeadAttention(E, kHeads, dropout); }, 4.0,
          /*short_target=*/1.6};
}

/// Inference without a mask; `more` are contestants of this kind alone.
template <typename Ours, typename Textbook>
void add_inference_rows(Rows& rows, const Kind<Ours, Textbook>& kind,
                        const std::vector<Contestant<Modules<Ours, Textbook>>>& more = {}) {
  using Inputs = Modules<Ours, Textbook>;
  const auto run_ours = [](Inputs& in) { return in.ours->forward(in.x); };
  const auto run_textbook = [](Inputs& in) { return in.textbook.forward(in.x); };
  const auto run_torch = [](Inputs& in) {
    const auto& x = in.x_length_first;
    return std::get<0>(
        in.torch_module->forward(x, x, x, /*key_padding_mask=*/{}, /*need_weights=*/false));
  };
  const auto batch_first = [](const at::Tensor& output) { return output.transpose(0, 1); };
  for (const int64_t E : {128, 512}) {
    for (const int64_t L : {2, 8, 50, 128, 512, 1024, 2048}) {
      const Size size{L, E};
      std::vector<Contestant<Inputs>> contestants{
          {"heed", run_ours},
          {"textbook", run_textbook, target(size)},
          {"nn::MultiheadAttention", run_torch,
           L == 50 && E == 128 ? kind.short_target : target(size), batch_first}};
      contestants.insert(contestants.end(), more.begin(), more.end());
      RowTraits traits;
      traits.flops = kind.flops(size);
      add_row<Inputs>(
          rows, fmt::format("{}/inference/L{}_E{}", kind.name, L, E), traits,
          [=] { return kind.inputs(size, /*training=*/false); }, contestants);
    }
  }
}

void add_masked_rows(Rows& rows) {
  for (const int64_t L : {50, 512, 2048}) {
    const Size size{L, 128};
    const auto make = [size] {
      auto inputs = multi_head(0.0).inputs(size, /*training=*/false);
      inputs.mask = at::ones({1, 1, size.L, size.L}, at::kLong).tril();
      return inputs;
    };
    add_row<MultiHeadModules>(
        rows, fmt::format("MultiHeadAttention/masked/L{}_E128", L), {}, make,
        {{"heed", [](auto& in) { return in.ours->forward(in.x, in.mask); }},
         {"textbook", [](auto& in) { return in.textbook.forward(in.x, in.mask); }, target(size)}});
  }
}

/// Forward and backward for x and every parameter; returns the gradient of x.
at::Tensor backward(MultiHeadModules& in, const at::Tensor& output) {
  auto leaves = in.ours->parameters();  // the textbook's too
  leaves.insert(leaves.begin(), in.x);
  return torch::autograd::grad({output}, leaves, {in.output_gradient}).front();
}

/// The weights of all heads too: [B, H, L, S].
void add_weights_rows(Rows& rows) {
  for (const int64_t E : {128, 512}) {
    const Size size{1024, E};
    add_row<MultiHeadModules>(
        rows, fmt::format("MultiHeadAttention/weights/L1024_E{}", E), {},
        [size] { return multi_head(0.0).inputs(size, /*training=*/false); },
        {{"heed", [](auto& in) { return std::get<1>(in.ours->forward_with_weights(in.x)); }},
         {"textbook", [](auto& in) { return std::get<1>(in.textbook.forward_with_weights(in.x)); },
          1.7},
         {"nn::MultiheadAttention",
          [](auto& in) {
            const auto& x = in.x_length_first;
            return std::get<1>(in.torch_module->forward(x, x, x, /*key_padding_mask=*/{},
                                                        /*need_weights=*/true, /*attn_mask=*/{},
                                                        /*average_attn_weights=*/false));
          },
          1.7}});
  }
}

/// Projections of query, key and value as the modules keep them, and packed into one product.
struct Projections {
  at::Tensor x;  // [1, L, E]
  std::vector<torch::nn::Linear> qkv;
  at::Tensor packed_weight, packed_bias;  // [3 E, E], [3 E]
};

void add_projection_rows(Rows& rows) {
  for (const auto& size : {Size{50, 128}, Size{512, 512}, Size{2048, 512}}) {
    const auto make = [size] {
      const auto linear = [size] { return torch::nn::Linear(size.E, size.E); };
      Projections in{at::randn({1, size.L, size.E}), {linear(), linear(), linear()}, {}, {}};
      in.packed_weight = at::cat({in.qkv[0]->weight, in.qkv[1]->weight, in.qkv[2]->weight});
      in.packed_bias = at::cat({in.qkv[0]->bias, in.qkv[1]->bias, in.qkv[2]->bias});
      return in;
    };
    RowTraits traits;
    traits.flops = 6.0 * static_cast<double>(size.L * size.E * size.E);
    const auto values = [](const at::Tensor& packed) { return packed.chunk(3, -1)[2]; };
    const double target = size.L == 50 ? 1.0 / 1.25 : 1.0 / 1.05;
    add_row<Projections>(
        rows, fmt::format("projections/L{}_E{}", size.L, size.E), traits, make,
        {{"heed", [](Projections& in) { return detail::project_together(in.qkv, in.x).back(); }},
         {"one product",
          [](Projections& in) { return at::linear(in.x, in.packed_weight, in.packed_bias); },
          target, values},
         {"one product of oneDNN",
          [](Projections& in) { return onednn_linear(in.x, in.packed_weight, in.packed_bias); },
          target, values, /*may_refuse=*/true}});
  }
}

void add_module_training_rows(Rows& rows) {
  for (const double dropout : {0.0, 0.1}) {
    for (const int64_t L : {512, 2048}) {
      const Size size{L, 512};
      const auto kind = multi_head(dropout);
      RowTraits traits;
      traits.flops = 3.0 * kind.flops(size);
      traits.training = true;
      traits.random = dropout > 0.0;
      add_row<MultiHeadModules>(
          rows, fmt::format("MultiHeadAttention/training/L{}_E512_dropout{}", L, dropout), traits,
          [=] { return kind.inputs(size, /*training=*/true); },
          {{"heed", [](auto& in) { return backward(in, in.ours->forward(in.x)); }},
           {"textbook", [](auto& in) { return backward(in, in.textbook.forward(in.x)); }}});
    }
  }
}

}  // namespace

void add_module_rows(Rows& rows) {
  add_inference_rows<Attention, TextbookAttention>(
      rows, {"Attention", [](int64_t E) { return Attention(E, 0.0); }, 3.0});
  add_inference_rows<AttentionV1, TextbookAttentionV1>(
      rows, {"AttentionV1", [](int64_t E) { return AttentionV1(E, 0.0); }, 3.0});
  add_inference_rows<MultiHeadAttention, TextbookMultiHeadAttention>(
      rows, multi_head(0.0),
      {{"linear+SDPA", [](auto& in) { return products_and_sdpa(in.ours, in.x); }},
       {"linear+attend", [](auto& in) { return products_and_attend(in.ours, in.x); }, kOfParts},
       {"oneDNN+attend", [](auto& in) { return onednn_products_and_attend(in.ours, in.x); },
        kOfParts, nullptr, /*may_refuse=*/true}});
  add_inference_rows<GroupQueryAttention, TextbookGroupQueryAttention>(
      rows,
      {"GroupQueryAttention", [](int64_t E) { return GroupQueryAttention(E, kHeads, kGroups); },
       2.0 + 2.0 * kGroups / kHeads});
  add_masked_rows(rows);
  add_weights_rows(rows);
  add_projection_rows(rows);
  add_module_training_rows(rows);
}

}  // namespace heed::bench

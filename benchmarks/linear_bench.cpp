// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <heed/pack_weights.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <utility>

#include "modules/layers/linear.h"
#include "rows.h"
#include "support/limits.h"

namespace heed::bench {

namespace {

/// A row's target beside LibTorch's products: this part of the speed of the faster one.
constexpr double kOfProduct = 0.95;
/// The target beside a plain read of the weights, as a part of its speed.
constexpr double kOfRead = 0.8;

struct LinearShape {
  int64_t rows, in, out;
  at::ScalarType dtype;
};

struct LinearInputs {
  torch::nn::Linear linear = nullptr;
  at::Tensor x;                // [rows, in]
  at::Tensor output_gradient;  // [rows, out]
  at::Tensor ours, theirs;     // outputs with graphs, of which gradients are taken; or undefined
};

LinearInputs make_linear_inputs(const LinearShape& s) {
  torch::nn::Linear linear(s.in, s.out);
  linear->to(s.dtype);
  return {linear,
          at::randn({s.rows, s.in}).to(s.dtype),
          at::randn({s.rows, s.out}).to(s.dtype),
          {},
          {}};
}

at::Tensor linear_heed(LinearInputs& in) { return detail::project(in.linear, in.x); }
at::Tensor linear_torch(LinearInputs& in) {
  return at::linear(in.x, in.linear->weight, in.linear->bias);
}
at::Tensor linear_onednn(LinearInputs& in) {
  return onednn_linear(in.x, in.linear->weight, in.linear->bias);
}

LinearInputs make_gradient_inputs(const LinearShape& s) {
  auto in = make_linear_inputs(s);
  in.x.requires_grad_();
  in.ours = linear_heed(in);
  in.theirs = linear_torch(in);
  return in;
}

at::Tensor linear_gradient(const LinearInputs& in, const at::Tensor& output, const at::Tensor& of) {
  return torch::autograd::grad({output}, {of}, {in.output_gradient}, /*retain_graph=*/true).front();
}

std::string linear_name(const char* work, const LinearShape& s) {
  return fmt::format("linear/{}/{}/R{}_I{}_O{}", work, c10::toString(s.dtype), s.rows, s.in, s.out);
}

RowTraits linear_traits(const LinearShape& s, bool training) {
  RowTraits traits;
  traits.flops = 2.0 * static_cast<double>(s.rows * s.in * s.out);
  traits.training = training;
  return traits;
}

/// Forward, and each gradient alone.
void add_product_rows(Rows& rows, const LinearShape& s) {
  using Inputs = LinearInputs;
  add_row<Inputs>(rows, linear_name("forward", s), linear_traits(s, /*training=*/false),
                  [s] { return make_linear_inputs(s); },
                  {{"heed", linear_heed},
                   {"at::linear", linear_torch, kOfProduct},
                   {"oneDNN", linear_onednn, kOfProduct, nullptr, /*may_refuse=*/true}});
  const auto add_gradient = [&](const char* name, auto leaf, auto by_onednn) {
    add_row<Inputs>(
        rows, linear_name(name, s), linear_traits(s, /*training=*/true),
        [s] { return make_gradient_inputs(s); },
        {{"heed", [leaf](Inputs& in) { return linear_gradient(in, in.ours, leaf(in)); }},
         {"at::linear", [leaf](Inputs& in) { return linear_gradient(in, in.theirs, leaf(in)); },
          kOfProduct},
         {"oneDNN",
          [by_onednn](Inputs& in) {
            const at::NoGradGuard no_grad;
            return by_onednn(in);
          },
          kOfProduct, nullptr, /*may_refuse=*/true}});
  };
  add_gradient(
      "input_gradient", [](Inputs& in) { return in.x; },
      [](Inputs& in) { return onednn_linear(in.output_gradient, in.linear->weight.t()); });
  add_gradient(
      "weight_gradient", [](Inputs& in) { return in.linear->weight; },
      [](Inputs& in) { return onednn_linear(in.output_gradient.t(), in.x.t()); });
}

/// As in decoding, where a layer's time is that of reading its weights.
void add_few_rows(Rows& rows, const LinearShape& s) {
  auto traits = linear_traits(s, /*training=*/false);
  traits.bytes = static_cast<double>(s.in * s.out * c10::elementSize(s.dtype));
  using Read = int64_t (*)(const at::Tensor&);
  const auto reader = [](Read read) {
    return [read](LinearInputs& in) { return at::tensor(read(in.linear->weight)); };
  };
  add_row<LinearInputs>(rows, linear_name("few_rows", s), traits,
                        [s] { return make_linear_inputs(s); },
                        {{"heed", linear_heed},
                         {"at::linear", linear_torch, kOfProduct},
                         {"oneDNN", linear_onednn, kOfProduct, nullptr, /*may_refuse=*/true},
                         {"a plain read", reader(plain_read), kOfRead, no_result},
                         {"a read in vectors", reader(vector_read), 0.0, no_result}});
}

struct PackedWeightCase {
  const char* name;
  PackOptions options;
  double bytes;  // of a weight
};

/// A layer of a model in inference, whose weight is packed, beside one whose weight is not.
void add_packed(Rows& rows, const LinearShape& s, const PackedWeightCase& c) {
  struct Inputs {
    LinearInputs plain;
    torch::nn::Linear packed = nullptr;
  };
  const auto make = [s, options = c.options] {
    Inputs in{make_linear_inputs(s), torch::nn::Linear(s.in, s.out)};
    in.packed->to(s.dtype);
    pack_weights(*in.packed, options);
    return in;
  };
  auto traits = linear_traits(s, /*training=*/false);
  traits.bytes = c.bytes * static_cast<double>(s.in * s.out);
  add_row<Inputs>(
      rows,
      fmt::format("linear/packed_{}/{}/R{}_I{}_O{}", c.name, c10::toString(s.dtype), s.rows, s.in,
                  s.out),
      traits, make,
      {{"heed", [](Inputs& in) { return detail::project(in.packed, in.plain.x); }},
       {"not packed", [](Inputs& in) { return linear_heed(in.plain); }, 0.0, no_result},
       {"at::linear", [](Inputs& in) { return linear_torch(in.plain); }, 0.0, no_result}});
}

void add_packed_weights(Rows& rows) {
  const PackedWeightCase as_is = {"as_is", PackFormat::as_is, 2},
                         int8 = {"int8", PackFormat::int8, 1},
                         int4 = {"int4", PackFormat::int4, 0.625};  // scales and offsets too
  const PackedWeightCase rounded = {"int8_activations",
                                    PackOptions(PackFormat::int8).quantize_activations(true), 1},
                         rounded4 = {"int4_activations",
                                     PackOptions(PackFormat::int4).quantize_activations(true),
                                     0.625};
  const auto add = [&](int64_t in, int64_t out) {
    for (const int64_t count : {1, 4, 8, 16, 64, 256, 1024}) {
      add_packed(rows, {count, in, out, at::kFloat}, {"as_is", PackFormat::as_is, 4});
      for (const auto& c : {as_is, int8, int4})
        add_packed(rows, {count, in, out, at::kBFloat16}, c);
      for (const auto& c : {rounded, rounded4}) {
        if (count > 8) add_packed(rows, {count, in, out, at::kBFloat16}, c);
      }
    }
  };
  add(576, 1536);
  add(2048, 5632);
}

}  // namespace

void add_linear_rows(Rows& rows) {
  add_packed_weights(rows);
  // The layers of small language models, in training.
  add_product_rows(rows, {512, 64, 64, at::kFloat});
  add_product_rows(rows, {4096, 128, 128, at::kFloat});
  add_product_rows(rows, {4096, 128, 344, at::kFloat});
  add_product_rows(rows, {3072, 384, 1024, at::kFloat});
  add_product_rows(rows, {2048, 576, 576, at::kFloat});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    add_product_rows(rows, {64, 512, 512, dtype});
    add_product_rows(rows, {64, 3072, 3072, dtype});
    add_product_rows(rows, {512, 768, 3072, dtype});
    add_product_rows(rows, {512, 3072, 768, dtype});
    add_product_rows(rows, {2048, 512, 512, dtype});
    add_product_rows(rows, {2048, 3072, 3072, dtype});
    for (const int64_t count : {1, 4, 8}) {
      add_few_rows(rows, {count, 512, 2048, dtype});
      add_few_rows(rows, {count, 3072, 3072, dtype});
    }
  }
}

}  // namespace heed::bench

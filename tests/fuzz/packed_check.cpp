// SPDX-License-Identifier: BSD-3-Clause
// pack_weights of a Linear, and files of it, against products in float64 with the weights that the
// file says: formats, groups, sizes, layouts, dtypes, and wrong arguments.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <heed/linear.h>
#include <heed/pack_weights.h>
#include <heed/weights.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>

#include "attend_verdict.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/layouts.h"

namespace heed::fuzz {

namespace {

struct Packed {
  PackOptions options;
  at::ScalarType dtype;
  int64_t inputs, outputs;
  bool bias;
};

Packed draw_packed() {
  constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
  const auto format = static_cast<PackFormat>(draw_below(6));
  PackOptions options(format);
  options.group_size(int64_t{32} << draw_below(3));
  if (format == PackFormat::int4) options.zero_point(one_in(2));
  if (format == PackFormat::int8 || format == PackFormat::int4) {
    options.quantize_activations(one_in(2));
  }
  const auto group = format == PackFormat::int4 ? options.group_size() : 1;
  return {options, kDtypes[draw_below(3)],
          group * (1 + draw_below(format == PackFormat::int4 ? 3 : 200)),
          1 + draw_below(one_in(4) ? 300 : 70), one_in(2)};
}

torch::nn::Linear make_linear(const Packed& packed) {
  torch::nn::Linear fc(torch::nn::LinearOptions(packed.inputs, packed.outputs).bias(packed.bias));
  fc->to(packed.dtype);
  return fc;
}

void set_weight(torch::nn::Linear& fc, const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  fc->weight.set_data(weight);
}

/// The weights [N, K] in float64 that a file of this layer has.
at::Tensor weights_in(const NamedTensors& file, const Packed& packed) {
  const auto tensor = [&](const char* name) { return file.at(std::string("weight.") + name); };
  const auto values = tensor("values");
  at::Tensor rows;  // [panels, K, 64]
  if (values.scalar_type() == at::kInt) {
    // The bits of a bfloat16 are the upper ones of a float's.
    const auto low = values.bitwise_left_shift(16), high = values.bitwise_and(-65536);
    rows = at::stack({low.view(at::kFloat), high.view(at::kFloat)}, 2).flatten(1, 2);
  } else if (values.scalar_type() == at::kByte) {
    rows = at::stack({values.bitwise_and(15), values.bitwise_right_shift(4)}, 2).flatten(1, 2);
  } else {
    rows = values;
  }
  rows = rows.to(at::kDouble).narrow(1, 0, packed.inputs);
  if (file.count("weight.scales") > 0) {
    const auto scales = tensor("scales").to(at::kDouble);
    const auto each = packed.inputs / scales.size(1);
    rows = rows * scales.repeat_interleave(each, 1);
    const bool is_symmetric =
        packed.options.format() == PackFormat::int4 && !packed.options.zero_point();
    expect(!is_symmetric || file.count("weight.offsets") == 0, "offsets that nothing needs");
    if (is_symmetric) rows = rows - 8 * scales.repeat_interleave(each, 1);
    if (file.count("weight.offsets") > 0) {
      rows = rows + tensor("offsets").to(at::kDouble).repeat_interleave(each, 1);
    }
  }
  return rows.transpose(1, 2).flatten(0, 1).narrow(0, 0, packed.outputs);
}

/// How far a weight may be from what it was, as docs/numerics.md says.
at::Tensor bound_of(const at::Tensor& weight, const Packed& packed) {
  const auto w = weight.to(at::kDouble);
  switch (packed.options.format()) {
    case PackFormat::as_is:
    case PackFormat::float32:
      return w.abs() * 0;
    case PackFormat::bfloat16:
      return w.abs() * 0x1p-8;
    case PackFormat::float16:
      return w.abs() * 0x1p-11 + 0x1p-25;
    case PackFormat::int8:
      return w.abs().amax(1, /*keepdim=*/true).expand_as(w) * (1.001 / 254);
    case PackFormat::int4:
      break;
  }
  const auto groups = w.unflatten(1, {-1, packed.options.group_size()});
  const auto most = groups.amax(-1, true), least = groups.amin(-1, true);
  const auto bound = packed.options.zero_point()
                         ? (most - least) * (0.5 / 15 + 0x1p-8) + least.abs() * 0x1p-8
                         : groups.abs().amax(-1, true) * (1.0 / 8 + 0.03);
  return bound.expand_as(groups).flatten(1, 2) * 1.001;
}

void check_products(const Packed& packed, const torch::nn::Linear& fc, const at::Tensor& weights) {
  const auto rows = one_in(10) ? 0 : 1 + draw_below(one_in(3) ? 40 : 9);
  const auto x =
      test::lay_out(test::uniform({rows, packed.inputs}, packed.dtype), draw_below(test::kLayouts));
  const at::NoGradGuard no_grad;
  const auto found = outcome(true, {"linear"}, [&] { return linear(fc, x); });
  const auto wide = x.to(at::kDouble);
  auto expected = wide.matmul(weights.t()), sums = wide.abs().matmul(weights.abs().t());
  if (packed.bias) {
    expected = expected + fc->bias.to(at::kDouble);
    sums = sums + fc->bias.to(at::kDouble).abs();
  }
  // int4 beside bfloat16 is rounded to it where there are many rows; the sums are those of float32.
  const bool in_pairs =
      packed.dtype == at::kBFloat16 && packed.options.format() == PackFormat::int4;
  const auto part = 2 * test::unit_roundoff(packed.dtype) + (in_pairs ? 0x1p-8 : 0.0) +
                    static_cast<double>(packed.inputs) * 0x1p-23;
  expect(found->scalar_type() == packed.dtype && found->sizes() == expected.sizes(),
         "another shape or dtype");
  auto bound = sums * part + 1e-7;
  if (packed.options.quantize_activations() && rows > 0) {
    // Half a step of each number of a row.
    const auto largest = wide.abs().amax(1, /*keepdim=*/true);
    bound = bound + largest * (0.5 / 127 * 1.001) * weights.abs().sum(1);
  }
  const auto excess = (found->to(at::kDouble) - expected).abs() - bound;
  expect(excess.numel() == 0 || excess.max().item<double>() <= 0, "output");
}

void check_packed_linear() {
  const auto packed = draw_packed();
  auto fc = make_linear(packed);
  set_weight(fc, test::lay_out(test::uniform({packed.outputs, packed.inputs}, packed.dtype),
                               draw_below(test::kRepeatedBatch)));
  const auto weight = fc->weight.detach();
  outcome(true, {"pack_weights"}, [&] {
    pack_weights(*fc, packed.options);
    return true;
  });
  const auto path =
      (std::filesystem::temp_directory_path() / ("heed_fuzz_packed_" + std::to_string(::getpid())))
          .string();
  save_weights(*fc, path);
  const auto weights = weights_in(read_weights(path), packed);
  const auto excess = (weights - weight.to(at::kDouble)).abs() - bound_of(weight, packed) - 1e-30;
  expect(excess.max().item<double>() <= 0, "a weight is too far from what it was");
  check_products(packed, fc, weights);
  auto loaded = make_linear(packed);
  load_weights(*loaded, path);
  std::filesystem::remove(path);
  const at::NoGradGuard no_grad;
  const auto x = test::uniform({2, packed.inputs}, packed.dtype);
  expect(linear(loaded, x).equal(linear(fc, x)), "a loaded layer computes something else");
}

void check_refusals() {
  auto packed = draw_packed();
  if (one_in(2)) {
    packed.options = PackOptions(PackFormat::int4);
    packed.inputs = 32 * draw_below(4) + 1 + draw_below(31);
  }
  auto fc = make_linear(packed);
  if (packed.inputs % 32 == 0 || packed.options.format() != PackFormat::int4) {
    const at::NoGradGuard no_grad;
    fc->weight.flatten()[draw_below(packed.inputs * packed.outputs)] =
        one_in(2) ? std::numeric_limits<double>::quiet_NaN()
                  : -std::numeric_limits<double>::infinity();
  }
  outcome(false, {"pack_weights"}, [&] {
    pack_weights(*fc, packed.options);
    return true;
  });
  expect(fc->weight.has_storage() && fc->weight.requires_grad(), "a refusal changed the layer");
}

}  // namespace

void check_packed(const Case& c) {
  for (int64_t i = 0; i < 1 + c.steps % 4; ++i) {
    if (one_in(5)) {
      check_refusals();
    } else {
      check_packed_linear();
    }
  }
}

}  // namespace heed::fuzz

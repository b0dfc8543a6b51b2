// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <heed/alibi.h>
#include <heed/masks.h>

#include <limits>
#include <optional>

#include "device_inputs.h"
#include "rows.h"

namespace heed::bench {

namespace {

constexpr double kOwnWork = 0.97;  // never slower than this, where SDPA does the same by itself
constexpr double kNoTarget = 0.0;
constexpr DeviceShape kCommon{2, 16, 16, 4096, 4096, 128, 128};

using Dtypes = std::vector<at::ScalarType>;

/// A kind of call: its options, and the mask with which SDPA computes the same, if it needs one.
struct DeviceKind {
  const char* name;
  DeviceShape shape;
  Dtypes dtypes;
  std::function<AttendOptions(const DeviceInputs&)> options;
  std::function<at::Tensor(const DeviceInputs&)> mask = nullptr;
  double target = kNoTarget;
  bool operators = false;  // they are its peer, too
  bool inference = true, training = true;
};

AttendOptions causal() { return AttendOptions().causal(true); }

std::function<AttendOptions(const DeviceInputs&)> always(const AttendOptions& options) {
  return [options](const DeviceInputs&) { return options; };
}

at::Tensor full_causal_mask(const DeviceInputs& in) {
  return causal_mask(in.query.size(2), in.key.size(2), in.query.device());
}

/// 1024 keys of 32768, and as large a part of fewer.
AttendOptions window_options(const DeviceInputs& in) {
  return causal().window(in.key.size(2) / 32);
}

at::Tensor full_window_mask(const DeviceInputs& in) {
  return window_mask(in.query.size(2), in.key.size(2), *in.options.window(), /*causal=*/true,
                     in.query.device());
}

AttendOptions document_options(const DeviceInputs& in) {
  const auto length = in.query.size(2);
  return causal().documents(at::arange(length, in.query.device()).div(length / 16, "floor"));
}

at::Tensor full_document_mask(const DeviceInputs& in) {
  return combine_masks({document_mask(*in.options.documents()), full_causal_mask(in)});
}

AttendOptions bias_options(const DeviceInputs& in) {
  return AttendOptions().bias(at::randn({1, in.query.size(1), in.query.size(2), in.key.size(2)},
                                        in.query.options().requires_grad(false)));
}

AttendOptions mask_options(const DeviceInputs& in) {
  auto mask = at::rand({in.query.size(2), in.key.size(2)}, in.query.device()) < 0.75;
  mask.select(1, 0).fill_(true);
  return AttendOptions().mask(mask);
}

AttendOptions alibi_options(const DeviceInputs& in) {
  return causal().alibi_slopes(alibi_slopes(in.query.size(1), in.query.device()));
}

/// The distances of all pairs as a bias.
at::Tensor alibi_bias(const DeviceInputs& in) {
  const auto dtype = in.query.scalar_type();
  const auto place = at::arange(in.query.size(2), in.query.device());
  const auto distance = (place.unsqueeze(1) - place).abs().to(dtype);
  return (distance * -in.options.alibi_slopes()->to(dtype).view({1, -1, 1, 1}))
      .masked_fill(full_causal_mask(in).logical_not(), -std::numeric_limits<double>::infinity());
}

AttendOptions sink_options(const DeviceInputs& in) {
  return causal().sinks(at::randn({in.query.size(1)}, in.query.options().requires_grad(false)));
}

std::vector<DeviceKind> device_kinds() {
  const auto every = Dtypes{at::kBFloat16, at::kHalf, at::kFloat};
  const auto two = Dtypes{at::kBFloat16, at::kFloat};
  auto longer = kCommon, grouped = kCommon, latent = kCommon;
  longer.L = 1024;
  grouped.H = 32;
  grouped.G = 8;
  latent.D = 192;
  const DeviceShape window{1, 8, 8, 32768, 32768, 128, 128};
  const DeviceShape documents{1, 16, 16, 16384, 16384, 128, 128};
  const auto given_bias = [](const DeviceInputs& in) { return *in.options.bias(); };
  const auto given_mask = [](const DeviceInputs& in) { return *in.options.mask(); };
  const auto softcap = always(causal().softcap(30.0));
  const auto dropout = always(causal().dropout(0.1));
  return {{"plain", kCommon, every, always({}), nullptr, kOwnWork},
          {"causal", kCommon, every, always(causal()), nullptr, kOwnWork},
          {"causal_longer_keys", longer, two, always(causal()), full_causal_mask},
          {"window", window, two, window_options, full_window_mask, 8.0},
          {"grouped", grouped, two, always(causal()), nullptr, kOwnWork},
          {"documents", documents, two, document_options, full_document_mask},
          {"bias", kCommon, two, bias_options, given_bias, kOwnWork},
          {"mask", kCommon, two, mask_options, given_mask, kOwnWork},
          {"value_dim", latent, two, always(causal()), nullptr, kOwnWork},
          {"alibi", kCommon, two, alibi_options, alibi_bias},
          {"softcap", kCommon, two, softcap, nullptr, kNoTarget, /*operators=*/true},
          {"sinks", kCommon, two, sink_options, nullptr, kNoTarget, /*operators=*/true},
          {"dropout", kCommon, two, dropout, nullptr, kOwnWork, /*operators=*/true,
           /*inference=*/false}};
}

at::Tensor device_heed(DeviceInputs& in) {
  return with_gradients(in, attend(in.query, in.key, in.value, in.options));
}

at::Tensor device_weights(DeviceInputs& in) {
  return with_gradients(in,
                        std::get<0>(attend_with_weights(in.query, in.key, in.value, in.options)));
}

std::string path_label(const DeviceInputs& in) {
  return std::string(to_string(attend_path(in.query, in.key, in.value, in.options)));
}

/// SDPA does softcap and sinks in no way.
std::vector<Contestant<DeviceInputs>> device_contestants(const DeviceKind& kind,
                                                         const DeviceShape& shape,
                                                         at::ScalarType dtype) {
  std::vector<Contestant<DeviceInputs>> contestants = {{"heed", device_heed}};
  if (kind.target > 0 || kind.mask) {
    const auto sdpa = sdpa_contestants(shape, kind.mask != nullptr, kind.target);
    contestants.insert(contestants.end(), sdpa.begin(), sdpa.end());
  }
  if (kind.operators) {
    contestants.push_back({"operators", device_operators, 0.0,
                           dtype == at::kFloat ? nullptr : not_compared, /*may_refuse=*/true});
  }
  return contestants;
}

struct DeviceCase {
  DeviceKind kind;
  DeviceShape shape;
  at::TensorOptions options;
  bool training;

  at::ScalarType dtype() const { return c10::typeMetaToScalarType(options.dtype()); }
  DeviceInputs make(bool with_mask) const {
    auto in = make_device_inputs(shape, options, training);
    in.options = kind.options(in);
    if (with_mask && kind.mask) in.mask = kind.mask(in);
    return in;
  }
  std::string name(const std::string& kind_name) const {
    return device_row(options.device(), kind_name, dtype(), training) + "/" + shape.name();
  }
};

void add_device_case(Rows& rows, const DeviceCase& c) {
  RowTraits traits;
  traits.training = c.training;
  traits.random = std::string(c.kind.name) == "dropout";
  add_row<DeviceInputs>(
      rows, c.name(c.kind.name), traits, [c] { return c.make(/*with_mask=*/true); },
      device_contestants(c.kind, c.shape, c.dtype()), path_label);
}

/// One head of many tokens: a byte for each pair of them is more than all else. Fewer where the
/// inputs have a number for each pair.
void add_peak_case(Rows& rows, DeviceCase c, bool tiny) {
  const std::string kind = c.kind.name;
  const int64_t length = tiny ? 1024 : kind == "bias" || kind == "mask" ? 16384 : 65536;
  const int64_t divisor = tiny ? 8 : 2;
  c.shape = {1, 1, 1, length, length, c.kind.shape.D / divisor, c.kind.shape.Dv / divisor};
  RowTraits traits;
  traits.training = c.training;
  traits.peak_limit = static_cast<double>(c.shape.L * c.shape.S);
  add_row<DeviceInputs>(
      rows, c.name("peak_" + kind), traits, [c] { return c.make(/*with_mask=*/false); },
      {{"heed", device_heed}}, path_label);
}

/// The weights are the result: L x S for each head.
void add_weights_cases(Rows& rows, at::TensorOptions options, bool tiny) {
  auto shape = kCommon;
  shape.L = shape.S = 2048;
  for (const bool training : {false, true}) {
    const DeviceCase c{
        {"weights", shape, {}, always(causal())}, tiny ? shape.tiny() : shape, options, training};
    RowTraits traits;
    traits.training = training;
    add_row<DeviceInputs>(
        rows, c.name("weights"), traits, [c] { return c.make(/*with_mask=*/true); },
        {{"heed", device_weights}, {"operators", device_operators, 0.0, not_compared}});
  }
}

}  // namespace

void add_device_rows(Rows& rows, at::Device device, bool tiny) {
  for (const auto& kind : device_kinds()) {
    for (const auto dtype : kind.dtypes) {
      for (const bool training : {false, true}) {
        if (training ? !kind.training : !kind.inference) continue;
        const DeviceCase c{kind, tiny ? kind.shape.tiny() : kind.shape,
                           at::device(device).dtype(dtype), training};
        add_device_case(rows, c);
        if (dtype != at::kHalf) add_peak_case(rows, c, tiny);
      }
    }
  }
  add_weights_cases(rows, at::device(device).dtype(at::kBFloat16), tiny);
  add_packed_device_rows(rows, device, tiny);
  add_decoding_device_rows(rows, device, tiny);
}

}  // namespace heed::bench

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

/// A kind of call. `prepare` gives inputs their options, and the mask that SDPA needs.
struct DeviceKind {
  const char* name;
  DeviceShape shape;
  Dtypes dtypes;
  std::function<void(DeviceInputs&)> prepare;
  bool has_mask = false;
  double target = kNoTarget;
  bool operators = false;  // they are its peer, too
  bool inference = true, training = true;
};

AttendOptions causal() { return AttendOptions().causal(true); }

void make_longer(DeviceInputs& in) {
  in.options = causal();
  in.mask = causal_mask(in.query.size(2), in.key.size(2), in.query.device());
}

/// 1024 keys of 32768, and as large a part of fewer.
void make_window(DeviceInputs& in) {
  const auto keys = in.key.size(2);
  in.options = causal().window(keys / 32);
  in.mask = window_mask(in.query.size(2), keys, keys / 32, /*causal=*/true, in.query.device());
}

void make_documents(DeviceInputs& in) {
  const auto length = in.query.size(2);
  const auto ids = at::arange(length, in.query.device()).div(length / 16, "floor");
  in.options = causal().documents(ids);
  in.mask = combine_masks({document_mask(ids), causal_mask(length, length, in.query.device())});
}

void make_bias(DeviceInputs& in) {
  in.mask = at::randn({1, in.query.size(1), in.query.size(2), in.key.size(2)},
                      in.query.options().requires_grad(false));
  in.options = AttendOptions().bias(*in.mask);
}

void make_mask(DeviceInputs& in) {
  in.mask = at::rand({in.query.size(2), in.key.size(2)}, in.query.device()) < 0.75;
  in.mask->select(1, 0).fill_(true);
  in.options = AttendOptions().mask(*in.mask);
}

/// SDPA needs the distances of all pairs as a bias.
void make_alibi(DeviceInputs& in) {
  const auto length = in.query.size(2);
  const auto device = in.query.device();
  const auto slopes = alibi_slopes(in.query.size(1), device);
  in.options = causal().alibi_slopes(slopes);
  const auto place = at::arange(length, device);
  const auto distance = (place.unsqueeze(1) - place).abs().to(in.query.scalar_type());
  in.mask = (distance * -slopes.to(in.query.scalar_type()).view({1, -1, 1, 1}))
                .masked_fill(causal_mask(length, length, device).logical_not(),
                             -std::numeric_limits<double>::infinity());
}

void make_sinks(DeviceInputs& in) {
  in.options =
      causal().sinks(at::randn({in.query.size(1)}, in.query.options().requires_grad(false)));
}

std::function<void(DeviceInputs&)> with_options(const AttendOptions& options) {
  return [options](DeviceInputs& in) { in.options = options; };
}

std::vector<DeviceKind> device_kinds() {
  const auto every = Dtypes{at::kBFloat16, at::kHalf, at::kFloat};
  const auto two = Dtypes{at::kBFloat16, at::kFloat};
  auto longer = kCommon, window = kCommon, grouped = kCommon, documents = kCommon, latent = kCommon;
  longer.L = 1024;
  window = {1, 8, 8, 32768, 32768, 128, 128};
  grouped.H = 32;
  grouped.G = 8;
  documents = {1, 16, 16, 16384, 16384, 128, 128};
  latent.D = 192;
  const DeviceKind dropout{"dropout", kCommon,  two,  with_options(causal().dropout(0.1)),
                           false,     kOwnWork, true, /*inference=*/false};
  return {{"plain", kCommon, every, with_options({}), false, kOwnWork},
          {"causal", kCommon, every, with_options(causal()), false, kOwnWork},
          {"causal_longer_keys", longer, two, make_longer, true},
          {"window", window, two, make_window, true, 8.0},
          {"grouped", grouped, two, with_options(causal()), false, kOwnWork},
          {"documents", documents, {at::kBFloat16}, make_documents, true},
          {"bias", kCommon, two, make_bias, true, kOwnWork},
          {"mask", kCommon, two, make_mask, true, kOwnWork},
          {"value_dim", latent, two, with_options(causal()), false, kOwnWork},
          {"alibi", kCommon, two, make_alibi, true},
          {"softcap", kCommon, two, with_options(causal().softcap(30.0)), false, kNoTarget, true},
          {"sinks", kCommon, two, make_sinks, false, kNoTarget, true},
          dropout};
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
  if (kind.target > 0 || kind.has_mask) {
    const auto sdpa = sdpa_contestants(shape, kind.has_mask, kind.target);
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

  DeviceInputs make() const {
    auto in = make_device_inputs(shape, options, training);
    kind.prepare(in);
    return in;
  }
  std::string name(const std::string& kind_name) const {
    return device_row(options.device(), kind_name, c10::typeMetaToScalarType(options.dtype()),
                      training) +
           "/" + shape.name();
  }
};

void add_device_case(Rows& rows, const DeviceCase& c) {
  RowTraits traits;
  traits.training = c.training;
  traits.random = std::string(c.kind.name) == "dropout";
  add_row<DeviceInputs>(
      rows, c.name(c.kind.name), traits, [c] { return c.make(); },
      device_contestants(c.kind, c.shape, c10::typeMetaToScalarType(c.options.dtype())),
      path_label);
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
  const auto make = [c] {
    auto in = c.make();
    in.mask = {};
    return in;
  };
  add_row<DeviceInputs>(rows, c.name("peak_" + kind), traits, make, {{"heed", device_heed}},
                        path_label);
}

/// The weights are the result: L x S for each head.
void add_weights_cases(Rows& rows, at::TensorOptions options, bool tiny) {
  auto shape = kCommon;
  shape.L = shape.S = 2048;
  for (const bool training : {false, true}) {
    const DeviceCase c{{"weights", shape, {}, with_options(causal())},
                       tiny ? shape.tiny() : shape,
                       options,
                       training};
    RowTraits traits;
    traits.training = training;
    add_row<DeviceInputs>(
        rows, c.name("weights"), traits, [c] { return c.make(); },
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

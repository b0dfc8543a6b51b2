// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <heed/group_query_attention.h>
#include <heed/kv_cache.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "device_inputs.h"
#include "rows.h"

namespace heed::bench {

namespace {

/// The lengths of `count` sequences: evenly apart up to `longest`, or all `longest`.
std::vector<int64_t> sequence_lengths(int64_t count, int64_t longest, bool equal) {
  std::vector<int64_t> lengths;
  for (int64_t n = 1; n <= count; ++n) lengths.push_back(equal ? longest : longest * n / count);
  return lengths;
}

/// Sequences packed, and again padded to the longest.
struct PackedDeviceInputs {
  at::Tensor query, key, value;  // [T, H, D]
  at::Tensor offsets;            // [N + 1]
  at::Tensor output_gradient;    // [T, H, D]; undefined: inference
  DeviceInputs padded;           // [N, H, L, D]
  at::Tensor tokens;             // [T]: where they are in the padded [N * L]
  AttendOptions options;
  int64_t longest;
};

struct PackedCase {
  std::vector<int64_t> lengths;
  DeviceShape shape;  // padded
  at::TensorOptions options;
  bool causal, training;

  PackedDeviceInputs make() const;
  bool is_ragged() const { return lengths.front() < lengths.back(); }
};

PackedDeviceInputs PackedCase::make() const {
  std::vector<at::Tensor> places;
  for (size_t n = 0; n < lengths.size(); ++n) {
    places.push_back(at::arange(lengths[n]) + static_cast<int64_t>(n) * shape.L);
  }
  PackedDeviceInputs in;
  in.options = AttendOptions().causal(causal);
  in.longest = shape.L;
  in.tokens = at::cat(places).to(options.device());
  const auto counts = at::tensor(lengths, at::kLong);
  in.offsets = at::cat({at::zeros({1}, at::kLong), counts.cumsum(0)}).to(options.device());
  in.padded = make_device_inputs(shape, options, training);
  in.padded.options = in.options;
  if (is_ragged() && !causal) in.padded.mask = padding_mask(counts, shape.L).to(options.device());
  const auto packed = [&](const at::Tensor& heads) {
    return heads.detach().transpose(1, 2).flatten(0, 1).index_select(0, in.tokens);
  };
  in.query = packed(in.padded.query).requires_grad_(training);
  in.key = packed(in.padded.key).requires_grad_(training);
  in.value = packed(in.padded.value).requires_grad_(training);
  if (training) in.output_gradient = packed(in.padded.output_gradient);
  return in;
}

at::Tensor run_packed(PackedDeviceInputs& in) {
  const auto output = attend_varlen(in.query, in.key, in.value, in.offsets, in.offsets, in.longest,
                                    in.longest, in.options);
  if (!in.output_gradient.defined()) return output;
  return torch::autograd::grad({output}, {in.query, in.key, in.value}, {in.output_gradient})
      .front();
}

/// Padding and its removal are not the attention's: as if a model were padded throughout. In
/// training padded tokens have gradients, too, so results differ.
std::vector<Contestant<PackedDeviceInputs>> padded_contestants(const PackedCase& c, double target) {
  std::vector<Contestant<PackedDeviceInputs>> contestants;
  const bool has_mask = c.is_ragged() && !c.causal;
  for (const auto& sdpa : sdpa_contestants(c.shape, has_mask, target)) {
    Contestant<PackedDeviceInputs> contestant{
        sdpa.name + ", padded", [run = sdpa.run](PackedDeviceInputs& in) { return run(in.padded); },
        target, not_compared, /*may_refuse=*/true};
    contestants.push_back(std::move(contestant));
  }
  return contestants;
}

/// Without padding's cost in what is computed: the tokens of the padded output.
at::Tensor packed_check(PackedDeviceInputs& in) {
  const OnlySdpaBackend only(SdpaBackend::math);
  return at::scaled_dot_product_attention(in.padded.query, in.padded.key, in.padded.value,
                                          in.padded.mask, /*dropout_p=*/0.0,
                                          in.options.causal() && !in.padded.mask)
      .transpose(1, 2)
      .flatten(0, 1)
      .index_select(0, in.tokens);
}

void add_packed_case(Rows& rows, const PackedCase& c, const std::string& kind, double target) {
  RowTraits traits;
  traits.training = c.training;
  std::vector<Contestant<PackedDeviceInputs>> contestants = {{"heed", run_packed}};
  const auto padded = padded_contestants(c, target);
  contestants.insert(contestants.end(), padded.begin(), padded.end());
  if (!c.training && scores_fit(c.shape)) {
    contestants.push_back({"SDPA, padding removed", packed_check});
  }
  const auto dtype = c10::typeMetaToScalarType(c.options.dtype());
  add_row<PackedDeviceInputs>(
      rows, device_row(c.options.device(), kind, dtype, c.training) + "/" + c.shape.name(), traits,
      [c] { return c.make(); }, contestants);
}

/// Copies as many bytes as the row counts: half of them read, half written.
template <typename Inputs>
at::Tensor copy_on_device(Inputs& in) {
  return in.copy_target.copy_(in.copy_source);
}

template <typename Inputs>
void make_copy(Inputs& in, double bytes, at::Device device) {
  in.copy_source =
      at::zeros({static_cast<int64_t>(bytes / 2)}, at::device(device).dtype(at::kByte));
  in.copy_target = at::empty_like(in.copy_source);
}

struct DecodingInputs {
  DeviceInputs heads;
  at::Tensor copy_source, copy_target;
};

double bytes_of_cache(int64_t tokens, const DeviceShape& s, at::ScalarType dtype) {
  return static_cast<double>(tokens * s.G * (s.D + s.Dv)) *
         static_cast<double>(c10::elementSize(dtype));
}

/// One query a sequence, all sequences of one length.
void add_decoding_case(Rows& rows, const DeviceShape& shape, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  RowTraits traits;
  traits.bytes = bytes_of_cache(shape.B * shape.S, shape, dtype);
  const auto make = [shape, options, bytes = traits.bytes] {
    DecodingInputs in{make_device_inputs(shape, options, /*training=*/false), {}, {}};
    make_copy(in, bytes, options.device());
    return in;
  };
  std::vector<Contestant<DecodingInputs>> contestants = {
      {"heed",
       [](DecodingInputs& in) {
         return attend(in.heads.query, in.heads.key, in.heads.value, AttendOptions().causal(true));
       }},
      {"a copy", copy_on_device<DecodingInputs>, 0.7, not_compared}};
  for (const auto& sdpa : sdpa_contestants(shape, /*has_mask=*/false, 0.97)) {
    contestants.push_back({sdpa.name,
                           [run = sdpa.run](DecodingInputs& in) { return run(in.heads); }, 0.97,
                           nullptr, /*may_refuse=*/true});
  }
  add_row<DecodingInputs>(
      rows, device_row(options.device(), "decoding", dtype, false) + "/" + shape.name(), traits,
      make, contestants, [](const DecodingInputs& in) {
        return std::string(to_string(attend_path(in.heads.query, in.heads.key, in.heads.value,
                                                 AttendOptions().causal(true))));
      });
}

/// One step of a module whose cache holds sequences of different lengths.
struct StepInputs {
  GroupQueryAttention module = nullptr;
  at::Tensor token;                   // [B, 1, E]
  std::vector<KVCache> first, cache;  // one of each; `cache` goes on from `first`
  int64_t taken = 0, room = 0;        // steps
  at::Tensor copy_source, copy_target;
};

struct StepCase {
  DeviceShape shape;  // S: the longest sequence
  at::TensorOptions options;
  int64_t steps;  // for which the cache has room
  bool fixed_shapes;

  int64_t width() const { return shape.H * shape.D; }
  std::vector<int64_t> lengths() const { return sequence_lengths(shape.B, shape.S, false); }
  double bytes() const;
  StepInputs make() const;
};

double StepCase::bytes() const {
  const auto all = lengths();
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const auto weights = 2 * width() * (shape.H + shape.G) * shape.D;
  return bytes_of_cache(std::accumulate(all.begin(), all.end(), int64_t{0}), shape, dtype) +
         static_cast<double>(weights) * static_cast<double>(c10::elementSize(dtype));
}

StepInputs StepCase::make() const {
  StepInputs in;
  in.module =
      GroupQueryAttention(GroupQueryAttentionOptions(width(), shape.H, shape.G).causal(true));
  in.module->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
  in.module->eval();
  in.token = at::randn({shape.B, 1, width()}, options);
  in.room = steps;
  in.first.push_back(
      in.module->make_cache(shape.B, shape.S + steps, CacheOptions().fixed_shapes(fixed_shapes)));
  const auto heads = [&] { return at::randn({shape.B, shape.G, shape.S, shape.D}, options); };
  in.first[0].append(heads(), heads(), lengths());
  in.cache.push_back(in.first[0].clone());
  make_copy(in, bytes(), options.device());
  return in;
}

/// Starts again once the cache is full, which is rare.
at::Tensor run_step(StepInputs& in) {
  if (in.taken++ == in.room) {
    in.cache[0] = in.first[0].clone();
    in.taken = 1;
  }
  return in.module->forward_cached(in.token, in.cache[0]);
}

/// The attention alone, with a mask.
at::Tensor masked_step(StepInputs& in) {
  const auto& cache = in.first[0];
  const auto keys = cache.keys();
  const auto dim = keys.size(3);
  const auto query = in.token.view({in.token.size(0), -1, 1, dim});
  const auto mask = padding_mask(at::tensor(cache.lengths(), at::kLong), keys.size(2));
  return at::scaled_dot_product_attention(query, keys, cache.values(), mask.to(keys.device()),
                                          /*dropout_p=*/0.0, /*is_causal=*/false,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/true);
}

void add_step_case(Rows& rows, const StepCase& c) {
  RowTraits traits;
  traits.bytes = c.bytes();
  const auto dtype = c10::typeMetaToScalarType(c.options.dtype());
  add_row<StepInputs>(
      rows,
      device_row(c.options.device(),
                 c.fixed_shapes ? "cached_step_fixed_shapes" : "cached_step_lengths_differ", dtype,
                 false) +
          "/" + c.shape.name(),
      traits, [c] { return c.make(); },
      {{"heed", run_step},
       {"a copy", copy_on_device<StepInputs>, 0.7, not_compared},
       {"SDPA, masked, no projections", masked_step, 0.0, not_compared, /*may_refuse=*/true}});
}

}  // namespace

void add_packed_device_rows(Rows& rows, at::Device device, bool tiny) {
  const auto add = [&](const std::string& kind, int64_t count, int64_t longest, bool equal,
                       bool causal, double target) {
    const int64_t padded = tiny ? longest / 32 : longest;
    const DeviceShape shape{count,  tiny ? 2 : 16,   tiny ? 2 : 16,  padded,
                            padded, tiny ? 16 : 128, tiny ? 16 : 128};
    for (const auto dtype : {at::kBFloat16, at::kFloat}) {
      for (const bool training : {false, true}) {
        const PackedCase c{sequence_lengths(count, padded, equal), shape,
                           at::device(device).dtype(dtype), causal, training};
        add_packed_case(rows, c, kind, target);
      }
    }
  };
  add("packed", 16, 2048, /*equal=*/false, /*causal=*/false, 2.0);
  add("packed_causal", 16, 2048, /*equal=*/false, /*causal=*/true, 2.0);
  add("packed_equal", 16, 1024, /*equal=*/true, /*causal=*/true, 0.97);
}

void add_decoding_device_rows(Rows& rows, at::Device device, bool tiny) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const auto options = at::device(device).dtype(dtype);
    for (const auto& s :
         {DeviceShape{16, 32, 8, 1, 8192, 128, 128}, DeviceShape{1, 32, 8, 1, 65536, 128, 128}}) {
      add_decoding_case(rows, tiny ? s.tiny() : s, options);
    }
    for (const bool fixed_shapes : {false, true}) {
      StepCase step{{16, 32, 8, 1, 8192, 128, 128}, options, /*steps=*/4096, fixed_shapes};
      if (tiny) step = {{4, 4, 2, 1, 128, 16, 16}, options, /*steps=*/64, fixed_shapes};
      add_step_case(rows, step);
    }
  }
}

}  // namespace heed::bench

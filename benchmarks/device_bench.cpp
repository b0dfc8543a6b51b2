#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <torch/csrc/autograd/autograd.h>

#include "peers.h"
#include "rows.h"

namespace heed::bench {

namespace {

struct DeviceShape {
  int64_t B, H, G, L, D;
};

struct DeviceInputs {
  at::Tensor query, key, value, output_gradient;
  AttendOptions options;
  std::optional<at::Tensor> mask;  // [L, L], what the options hide besides causal
};

struct DeviceVariant {
  const char* name;
  AttendOptions options;
  int64_t heads_per_group = 1;
  bool training = false;
};

std::vector<DeviceVariant> device_variants() {
  const auto causal = AttendOptions().causal(true);
  return {{"plain", {}},
          {"causal", causal},
          {"window256", AttendOptions().causal(true).window(256)},
          {"gqa", causal, /*heads_per_group=*/4},
          {"training", causal, 1, /*training=*/true}};
}

DeviceInputs make_device_inputs(const DeviceShape& s, const DeviceVariant& variant,
                                const at::TensorOptions& options) {
  const auto heads = [&](int64_t count) {
    return at::randn({s.B, count, s.L, s.D}, options).requires_grad_(variant.training);
  };
  DeviceInputs in{heads(s.H), heads(s.G), heads(s.G), {}, variant.options, {}};
  in.output_gradient = at::randn_like(in.query);
  if (const auto window = in.options.window()) {
    in.mask = window_mask(s.L, s.L, *window, /*causal=*/true, in.query.device());
  }
  return in;
}

/// The output; in training the gradient of query, those of the others computed too.
at::Tensor finish_on_device(const DeviceInputs& in, const at::Tensor& output) {
  if (!in.query.requires_grad()) return output;
  return torch::autograd::grad({output}, {in.query, in.key, in.value}, {in.output_gradient})
      .front();
}

at::Tensor device_heed(DeviceInputs& in) {
  return finish_on_device(in, attend(in.query, in.key, in.value, in.options));
}

at::Tensor device_sdpa(DeviceInputs& in) {
  return finish_on_device(
      in, at::scaled_dot_product_attention(in.query, in.key, in.value, in.mask, /*dropout_p=*/0.0,
                                           /*is_causal=*/in.options.causal() && !in.mask,
                                           /*scale=*/std::nullopt,
                                           /*enable_gqa=*/in.query.size(1) != in.key.size(1)));
}

/// Keys and values repeated.
at::Tensor device_textbook(DeviceInputs& in) {
  const auto repeats = in.query.size(1) / in.key.size(1);
  const auto L = in.query.size(2);
  auto mask = in.mask;
  if (in.options.causal() && !mask) mask = causal_mask(L, L, in.query.device());
  return finish_on_device(in, textbook_attention(in.query, in.key.repeat_interleave(repeats, 1),
                                                 in.value.repeat_interleave(repeats, 1), mask));
}

/// In half precision it rounds the scores: too far off to be compared.
at::Tensor not_compared(const at::Tensor& /*result*/) { return {}; }

}  // namespace

void add_device_rows(Rows& rows, at::Device device) {
  // A GPU is busy for about a millisecond with the larger one; a CPU, with its own.
  const auto shapes = device.is_cpu()
                          ? std::vector<DeviceShape>{{1, 4, 4, 260, 16}}
                          : std::vector<DeviceShape>{{8, 16, 16, 512, 64}, {4, 32, 32, 2048, 128}};
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& variant : device_variants()) {
      for (auto s : shapes) {
        s.G = s.H / variant.heads_per_group;
        RowTraits traits;
        traits.training = variant.training;
        add_row<DeviceInputs>(
            rows,
            fmt::format("{}/{}/{}/{}x{}x{}x{}", device.is_cpu() ? "cpu" : "cuda", variant.name,
                        c10::toString(dtype), s.B, s.H, s.L, s.D),
            traits, [=] { return make_device_inputs(s, variant, at::device(device).dtype(dtype)); },
            {{"heed", device_heed},
             {"SDPA", device_sdpa},
             {"textbook", device_textbook, 0.0, dtype == at::kFloat ? nullptr : not_compared}});
      }
    }
  }
}

}  // namespace heed::bench

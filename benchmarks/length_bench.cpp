// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>
#include <heed/attend.h>
#include <heed/masks.h>

#include "peers.h"
#include "rows.h"

namespace heed::bench {

namespace {

struct LengthInputs {
  at::Tensor query, key, value;
  AttendOptions options;
  at::Tensor mask;  // [L, L], the same as the options
};

LengthInputs make_length_inputs(int64_t L, std::optional<int64_t> window) {
  const auto heads = [L] { return at::randn({1, 8, L, 64}); };
  return {heads(), heads(), heads(), AttendOptions().causal(true).window(window),
          window ? window_mask(L, L, *window, /*causal=*/true) : causal_mask(L, L)};
}

at::Tensor length_heed(LengthInputs& in) { return attend(in.query, in.key, in.value, in.options); }

at::Tensor length_sdpa(LengthInputs& in) {
  if (!in.options.window()) {
    return at::scaled_dot_product_attention(in.query, in.key, in.value, /*attn_mask=*/{},
                                            /*dropout_p=*/0.0, /*is_causal=*/true);
  }
  return at::scaled_dot_product_attention(in.query, in.key, in.value, in.mask);
}

at::Tensor length_textbook(LengthInputs& in) {
  return textbook_attention(in.query, in.key, in.value, in.mask);
}

}  // namespace

void add_length_rows(Rows& rows) {
  for (const auto window : {std::optional<int64_t>(), std::optional<int64_t>(256)}) {
    for (const int64_t L : {64, 128, 256, 512, 1024, 2048, 4096}) {
      add_row<LengthInputs>(
          rows,
          fmt::format("length/{}/1x8x{}x64", window ? fmt::format("window{}", *window) : "causal",
                      L),
          {}, [=] { return make_length_inputs(L, window); },
          {{"heed", length_heed}, {"SDPA", length_sdpa}, {"textbook", length_textbook}});
    }
  }
}

}  // namespace heed::bench

// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/inputs.h"

/// Calls of `attend` on the simulated device.

namespace heed::test {

inline at::Device cuda() { return {at::kCUDA, 0}; }

/// One call of `attend` and the path that it takes.
struct CudaCall {
  std::string name;
  at::ScalarType dtype;
  Sizes sizes;
  AttendOptions options;
  AttendPath path;
  bool training = false;
};

inline Inputs inputs_of(const CudaCall& call) {
  auto inputs = make_inputs(call.sizes, at::device(cuda()).dtype(call.dtype));
  for (auto* tensor : {&inputs.query, &inputs.key, &inputs.value}) {
    tensor->requires_grad_(call.training);
  }
  return inputs;
}

struct Arguments : Inputs {
  AttendOptions options;
};

/// Leaves with the numbers of `given`, there and in that dtype, and the call's options there.
inline Arguments copies_on(at::Device device, at::ScalarType dtype, const CudaCall& call,
                           const Inputs& given) {
  const auto leaf = [&](const at::Tensor& x) {
    return x.detach().to(device).to(dtype).requires_grad_(call.training);
  };
  Arguments result{{leaf(given.query), leaf(given.key), leaf(given.value)}, call.options};
  auto& options = result.options;
  for (auto* tensor : {&options.mask(), &options.bias(), &options.sinks(), &options.alibi_slopes(),
                       &options.documents(), &options.global_tokens(), &options.relative_bias()}) {
    if (*tensor) *tensor = (*tensor)->to(device);
  }
  return result;
}

/// Every kind of call that docs/gpu.md names.
inline std::vector<CudaCall> cuda_calls(int64_t length = 40) {
  using Path = AttendPath;
  const auto L = length, S = length + 24;
  const Sizes same{2, 4, 4, L, L, 16, 16}, longer{2, 4, 4, L, S, 16, 16},
      grouped{2, 4, 2, L, L, 16, 16}, one{2, 4, 2, 1, S, 16, 16}, wide{2, 4, 4, L, L, 16, 24},
      widest{1, 2, 2, L, L, 264, 264}, blind{2, 4, 4, S, L, 16, 16};
  const auto on = [](const at::Tensor& tensor) { return tensor.to(cuda()); };
  const auto options = [] { return AttendOptions(); };
  const auto padding = on(at::arange(L).lt(L - 3).view({1, 1, 1, L}));
  const auto dense = on(at::ones({L, L}, at::kBool).tril(3));
  const auto bias = on(at::randn({1, 4, L, L}));
  const auto sinks = on(at::randn({4})), slopes = on(at::tensor({0.5F, 0.25F, 0.1F, 0.05F}));
  const auto documents = on(at::arange(L).div(13, "floor"));
  const auto global = on(at::arange(L).remainder(9).eq(1)), relative = on(at::randn({4, 9}));
  std::vector<CudaCall> calls;
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto add = [&](const char* name, const Sizes& sizes, const AttendOptions& given,
                         Path path) {
      calls.push_back({name, dtype, sizes, given, path});
    };
    add("plain", same, {}, Path::fused);
    add("causal", same, options().causal(true), Path::fused);
    add("causal, L < S", longer, options().causal(true), Path::flash);
    add("causal, L > S", blind, options().causal(true), Path::flash);
    add("causal window", same, options().causal(true).window(5), Path::flash);
    add("two-sided window", longer, options().window(5), Path::flash);
    add("left window", same, options().left_window(5), Path::flash);
    add("right window", same, options().right_window(3), Path::flash);
    add("left and right window", longer, options().left_window(5).right_window(2), Path::flash);
    add("top left, causal", longer, options().top_left(true).causal(true), Path::fused);
    add("top left, window", longer, options().top_left(true).causal(true).window(5), Path::flash);
    add("global tokens", same, options().window(5).global_tokens(global), Path::query_blocks);
    add("relative bias", same, options().relative_bias(relative), Path::query_blocks);
    add("grouped heads", grouped, options().causal(true), Path::fused);
    add("grouped heads, window", grouped, options().causal(true).window(5), Path::flash);
    add("one query", one, options().causal(true), Path::fused);
    add("one query, window", one, options().causal(true).window(5), Path::fused);
    add("Dv and D differ", wide, options().causal(true), Path::flash);
    add("D above 256", widest, options().causal(true).window(5), Path::efficient);
    add("sinks", same, options().causal(true).sinks(sinks), Path::flash);
    add("sinks, window", same, options().causal(true).window(5).sinks(sinks), Path::flash);
    add("documents", same, options().causal(true).documents(documents), Path::flash);
    add("documents, window", same, options().causal(true).window(5).documents(documents),
        Path::query_blocks);
    add("padding mask, causal", same, options().causal(true).mask(padding), Path::efficient);
    add("bias", same, options().bias(bias.to(dtype)), Path::fused);
    add("bias, causal", same, options().causal(true).bias(bias.to(dtype)), Path::efficient);
    add("float32 bias", same, options().bias(bias), Path::query_blocks);
    add("softcap", same, options().causal(true).softcap(20.0), Path::query_blocks);
    add("ALiBi", same, options().causal(true).alibi_slopes(slopes), Path::query_blocks);
    add("dropout", same, options().causal(true).dropout(0.1), Path::fused);
    add("dropout, window", same, options().causal(true).window(5).dropout(0.1), Path::flash);
  }
  const auto add = [&](const char* name, const Sizes& sizes, const AttendOptions& given, Path path,
                       at::ScalarType dtype = at::kFloat) {
    calls.push_back({name, dtype, sizes, given, path});
  };
  add("plain", same, {}, Path::fused);
  add("causal", same, options().causal(true), Path::fused);
  add("causal, L < S", longer, options().causal(true), Path::efficient);
  add("causal, L > S", blind, options().causal(true), Path::efficient);
  add("causal window", same, options().causal(true).window(5), Path::efficient);
  add("causal window, L < S", longer, options().causal(true).window(5), Path::efficient);
  add("two-sided window", same, options().window(5), Path::query_blocks);
  add("left window, causal", longer, options().causal(true).left_window(5), Path::efficient);
  add("left window", same, options().left_window(5), Path::query_blocks);
  add("top left, causal", longer, options().top_left(true).causal(true), Path::fused);
  add("top left, causal, L > S", blind, options().top_left(true).causal(true), Path::fused);
  add("global tokens", same, options().window(5).global_tokens(global), Path::query_blocks);
  add("relative bias", longer, options().causal(true).relative_bias(relative), Path::query_blocks);
  add("grouped heads", grouped, options().causal(true), Path::efficient);
  add("one query", one, options().causal(true), Path::fused);
  add("Dv and D differ", wide, options().causal(true).window(5), Path::efficient);
  add("padding mask", same, options().mask(padding), Path::efficient);
  add("dense mask, causal", same, options().causal(true).mask(dense), Path::efficient);
  add("bias, causal", same, options().causal(true).bias(bias), Path::efficient);
  add("sinks", same, options().causal(true).sinks(sinks), Path::efficient);
  add("documents", same, options().causal(true).documents(documents), Path::query_blocks);
  add("softcap", same, options().softcap(20.0), Path::query_blocks);
  add("ALiBi", same, options().causal(true).alibi_slopes(slopes), Path::query_blocks);
  add("dropout, window", same, options().causal(true).window(5).dropout(0.1), Path::efficient);
  add("plain", same, {}, Path::query_blocks, at::kDouble);
  add("causal window", same, options().causal(true).window(5), Path::query_blocks, at::kDouble);
  const auto inference = calls;
  for (auto call : inference) {
    call.training = true;
    call.name += ", training";
    calls.push_back(call);
  }
  return calls;
}

}  // namespace heed::test

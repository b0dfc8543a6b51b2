// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "core/checks.h"
#include "core/dtypes.h"
#include "cpu/layers/rms_norm.h"
#include "cpu/layers/rotate.h"
#include "ops/traced.h"

/// The operators rotate, rms_norm and rms_norm_backward.

namespace heed::detail {

namespace {

// rotate(x [B, H, L, D], cos and sin [L, R / 2] or [B, L, R / 2]). Its gradient is the opposite
// rotation.

constexpr auto kRotate = "rotate";

struct RotateCall {
  at::Tensor x, cos, sin;
  bool interleaved;
};

RotateCall read_rotate(Arguments& arguments) {
  RotateCall call;
  call.x = arguments.next<at::Tensor>();
  call.cos = arguments.next<at::Tensor>();
  call.sin = arguments.next<at::Tensor>();
  call.interleaved = arguments.next<bool>();
  return call;
}

void check(const RotateCall& call) {
  const auto& [x, cos, sin, interleaved] = call;
  check_defined(kRotate, "x", x);
  check_defined(kRotate, "cos", cos);
  check_defined(kRotate, "sin", sin);
  check_rank(kRotate, "x", x, 4);
  check_floating(kRotate, "x", x);
  HEED_CHECK(cos.is_floating_point() && sin.scalar_type() == cos.scalar_type(),
             "{}: cos dtype ({}) must be floating and equal sin dtype ({})", kRotate,
             c10::toString(cos.scalar_type()), c10::toString(sin.scalar_type()));
  check_same_device(kRotate, "cos", cos, "x", x);
  check_same_device(kRotate, "sin", sin, "x", x);
  if (has_symbolic_sizes({x, cos, sin})) return;
  const auto rank = cos.dim();
  HEED_CHECK(
      (rank == 2 || (rank == 3 && cos.size(0) == x.size(0))) && cos.size(rank - 2) == x.size(2),
      "{}: cos must be [L, R / 2] or [B, L, R / 2]; x {}, cos {}", kRotate, shape(x), shape(cos));
  HEED_CHECK(sin.sizes() == cos.sizes(), "{}: sin must have the shape of cos; sin {}, cos {}",
             kRotate, shape(sin), shape(cos));
  HEED_CHECK(
      cos.size(-1) >= 1 && 2 * cos.size(-1) <= x.size(3),
      "{}: cos dim {} ({}) must be at least 1 and at most half of x dim 3 ({}); x {}, cos {}",
      kRotate, rank - 1, cos.size(-1), x.size(3), shape(x), shape(cos));
}

Results rotate_own(Arguments& arguments) {
  const auto call = read_rotate(arguments);
  check(call);
  const auto turns = [&](const at::Tensor& given) {
    const auto numbers = given.to(compute_dtype(call.x.scalar_type()));
    return numbers.dim() == 2 ? numbers.unsqueeze(0).unsqueeze(0) : numbers.unsqueeze(1);
  };
  return {rotate(call.x, {turns(call.cos), turns(call.sin), call.interleaved})};
}

/// An uninitialized result of rotate on this device, with the strides that the kernel writes.
at::Tensor empty_rotated(const at::Tensor& x, at::Device device) {
  const auto options = x.options().device(device);
  return x.sym_stride(3) == 1 ? at::empty_like(x, options)
                              : at::empty_symint(x.sym_sizes(), options);
}

Results rotate_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  auto first = arguments;
  const auto x = read_rotate(first).x;
  return {laid_out_like(rotate_own(arguments)[0], empty_rotated(x, at::kMeta))};
}

Results rotate_on_meta(Arguments& arguments) {
  const auto call = read_rotate(arguments);
  check(call);
  return {empty_rotated(call.x, call.x.device())};
}

struct TracedRotate : public torch::autograd::Function<TracedRotate> {
  static Variable forward(AutogradContext* context, at::TensorList /*inputs*/,
                          const Stack& arguments) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({arguments[1].toTensor(), arguments[2].toTensor()});
    context->saved_data["interleaved"] = arguments[3];
    return call_operator("rotate", arguments)[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = context->get_saved_variables();
    auto gradient = call_operator(
        "rotate", {of_results[0], saved[0], saved[1].neg(), context->saved_data["interleaved"]})[0];
    return {std::move(gradient), {}, {}, {}};  // for x, cos, sin and arguments
  }
};

CallToRecord described_rotate(Arguments& arguments) {
  const auto call = read_rotate(arguments);
  return {{call.x, call.cos, call.sin}};
}

Results rotate_traced(const Stack& arguments, const CallToRecord& to_record) {
  const auto& inputs = to_record.inputs;
  if (inputs[1].requires_grad() || inputs[2].requires_grad()) {
    Arguments again(arguments, arguments.size());
    return rotate_own(again);  // LibTorch's operators, which differentiate by the angles
  }
  return {TracedRotate::apply(at::TensorList(inputs), arguments)};
}

// rms_norm(x [.., D], weight [D]) normalizes over the last dimension.

constexpr auto kRmsNorm = "rms_norm";

struct RmsNormCall {
  at::Tensor x, weight;
  double eps;
};

RmsNormCall read_rms_norm(Arguments& arguments) {
  RmsNormCall call;
  call.x = arguments.next<at::Tensor>();
  call.weight = arguments.next<at::Tensor>();
  call.eps = arguments.next<double>();
  return call;
}

void check(const RmsNormCall& call) {
  const auto& [x, weight, eps] = call;
  check_defined(kRmsNorm, "x", x);
  check_defined(kRmsNorm, "weight", weight);
  check_floating(kRmsNorm, "x", x);
  if (!norm_takes(x.scalar_type(), weight.scalar_type())) {
    check_same_dtype(kRmsNorm, "weight", weight, "x", x);
  }
  check_same_device(kRmsNorm, "weight", weight, "x", x);
  check_rank(kRmsNorm, "weight", weight, 1);
  check_eps(kRmsNorm, eps);
  if (has_symbolic_sizes({x, weight})) return;
  HEED_CHECK(x.dim() >= 1 && x.size(-1) == weight.size(0),
             "{}: the last dim of x must equal weight dim 0 ({}); x {}", kRmsNorm, weight.size(0),
             shape(x));
}

Results rms_norm_own(Arguments& arguments) {
  const auto call = read_rms_norm(arguments);
  check(call);
  return {rms_norm(call.x, call.weight, call.eps).contiguous()};
}

Results rms_norm_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return rms_norm_own(arguments);
}

Results rms_norm_on_meta(Arguments& arguments) {
  const auto call = read_rms_norm(arguments);
  check(call);
  return {empty_dense(call.x)};
}

// rms_norm_backward(output_gradient, <arguments of rms_norm>) -> gradients of x and weight

Results rms_norm_backward_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  const auto of_output = arguments.next<at::Tensor>();
  const auto call = read_rms_norm(arguments);
  check(call);
  const auto& [x, weight, eps] = call;
  HEED_CHECK(of_output.sizes() == x.sizes() && of_output.scalar_type() == x.scalar_type(),
             "rms_norm_backward: output_gradient must be {} {}, as x; it is {} {}",
             c10::toString(x.scalar_type()), shape(x), c10::toString(of_output.scalar_type()),
             shape(of_output));
  const auto found = rms_norm_gradients(x, weight, eps, of_output);
  return {found.x.contiguous(), found.weight.contiguous()};
}

Results rms_norm_backward_on_meta(Arguments& arguments) {
  arguments.next<at::Tensor>();
  const auto [x, weight, eps] = read_rms_norm(arguments);
  return {empty_dense(x), empty_dense(weight)};
}

struct TracedRmsNorm : public torch::autograd::Function<TracedRmsNorm> {
  static Variable forward(AutogradContext* context, at::TensorList /*inputs*/,
                          const Stack& arguments) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save_call(context, arguments, {});
    return call_operator("rms_norm", arguments)[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    auto stack = saved_call(context).arguments;
    stack.insert(stack.begin(), of_results[0]);
    auto gradients = call_operator("rms_norm_backward", std::move(stack));
    gradients.emplace_back();  // for arguments
    return gradients;
  }
};

CallToRecord described_rms_norm(Arguments& arguments) {
  const auto call = read_rms_norm(arguments);
  return {{call.x, call.weight}};
}

Results rms_norm_traced(const Stack& arguments, const CallToRecord& to_record) {
  return {TracedRmsNorm::apply(at::TensorList(to_record.inputs), arguments)};
}

void register_layers(torch::Library& library) {
  library.impl("rotate", boxed<rotate_on_device>());
  library.impl("rms_norm", boxed<rms_norm_on_device>());
  library.impl("rms_norm_backward", boxed<rms_norm_backward_on_device>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  define(library, "rotate(Tensor x, Tensor cos, Tensor sin, *, bool interleaved=False) -> Tensor",
         /*draws=*/false);
  define(library, "rms_norm(Tensor x, Tensor weight, *, float eps=1e-5) -> Tensor",
         /*draws=*/false);
  define(library,
         "rms_norm_backward(Tensor output_gradient, Tensor x, Tensor weight, *, float eps=1e-5) "
         "-> (Tensor x_gradient, Tensor weight_gradient)",
         /*draws=*/false);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { register_layers(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { register_layers(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) {
  library.impl("rotate", boxed<rotate_on_meta>());
  library.impl("rms_norm", boxed<rms_norm_on_meta>());
  library.impl("rms_norm_backward", boxed<rms_norm_backward_on_meta>());
}

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  library.impl("rotate", torch::CppFunction::makeFromBoxedFunction<
                             &call_recorded<rotate_own, described_rotate, rotate_traced>>());
  library.impl("rms_norm",
               torch::CppFunction::makeFromBoxedFunction<
                   &call_recorded<rms_norm_own, described_rms_norm, rms_norm_traced>>());
  library.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace heed::detail

// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/linear.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <heed/linear.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/autocast.h"
#include "core/checks.h"
#include "core/plain.h"
#include "cpu/capability.h"
#include "cpu/layers/dense.h"
#include "cpu/layers/function.h"
#include "cpu/layers/packed_weight.h"
#include "cpu/layers/recipes.h"

namespace heed::detail {

namespace {

/// Finds oneDNN's operator. Returns nullopt if this LibTorch lacks it, or if it has other
/// arguments.
std::optional<c10::OperatorHandle> find_pointwise() {
  constexpr std::array<std::string_view, 6> kArguments = {"X",    "W",       "B",
                                                          "attr", "scalars", "algorithm"};
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return {};
  const auto& arguments = found->schema().arguments();
  const bool is_known =
      std::equal(arguments.begin(), arguments.end(), kArguments.begin(), kArguments.end(),
                 [](const auto& argument, auto name) { return argument.name() == name; });
  return is_known ? found : std::nullopt;
}

/// oneDNN's operator, found once; null if this LibTorch lacks it.
const c10::OperatorHandle* pointwise_operator() {
  static const auto found = find_pointwise();
  return found ? &*found : nullptr;
}

at::Tensor multiply_pointwise(const at::Tensor& input, const LinearParameters& layer) {
  const at::AutoDispatchBelowADInplaceOrView below;  // autograd has no formula for the operator
  using Scalars = c10::List<std::optional<at::Scalar>>;
  const auto& [weight, bias] = layer;
  std::vector<c10::IValue> stack = {
      dense(input), weight,    bias.defined() ? c10::IValue(bias) : c10::IValue(),
      "none",       Scalars(), ""};
  pointwise_operator()->callBoxed(stack);
  return std::move(stack.front()).toTensor();
}

/// Whether the shapes suit a product that is not LibTorch's. If they are wrong, at::linear reports
/// the error.
bool shapes_fit(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return input.dim() >= 1 && weight.dim() == 2 && input.size(-1) == weight.size(1) &&
         (!bias.defined() ||
          (bias.dim() == 1 && bias.size(0) == weight.size(0) && bias.is_contiguous())) &&
         input.numel() > 0 && weight.numel() > 0;
}

bool are_plain(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto dtype = input.scalar_type();
  return is_plain(input) && is_plain(weight) && weight.scalar_type() == dtype &&
         (!bias.defined() || (is_plain(bias) && bias.scalar_type() == dtype));
}

/// Whether a product of these tensors, also LibTorch's, can be recorded here.
bool can_record(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return calls_reach_kernels() && !at::autocast::is_autocast_enabled(at::kCPU) &&
         are_plain(input, weight, bias) && shapes_fit(input, weight, bias);
}

// The next functions choose a product. Their measurements are in docs/kernels.md, "Projections".

bool few_rows_are_faster(const at::Tensor& input, const at::Tensor& weight) {
  constexpr int64_t kWeight = 1 << 18;  // elements; with more, tiles of bfloat16 win from 5 rows on
  const auto& blas = blas_properties();
  const auto rows = input.numel() / weight.size(1);
  const auto dtype = input.scalar_type();
  const bool of_half = instruction_set().converts_half && (rows > 1 || blas.wide_vectors);
  const bool has_kernel =
      dtype == at::kFloat || dtype == at::kBFloat16 || (dtype == at::kHalf && of_half);
  const bool has_tiles = dtype == at::kBFloat16 && blas.bfloat16_tiles;
  const auto most = has_tiles && weight.numel() > kWeight ? 4 : kFewRows;
  return has_kernel && instruction_set().vector_bytes >= 32 && rows <= most &&
         weight.stride(1) == 1;
}

/// Whether columns of both operands are contiguous, as in the gradient of a weight.
bool are_by_columns(const at::Tensor& input, const at::Tensor& weight) {
  return input.dim() == 2 && input.stride(0) == 1 && weight.stride(0) == 1;
}

/// The largest products that are faster in blocks.
struct BlockLimits {
  int64_t weight;          ///< elements of a weight
  int64_t gradient;        ///< elements of a weight's gradient,
  int64_t gradient_depth;  ///< or the rows of its operands
};

BlockLimits block_limits() {
  // MKL for AVX2: a weight stays in a core's cache; a gradient is read again for each 256 of the
  // depth.
  constexpr BlockLimits kHalfVectors = {1 << 18, 1 << 21, 512};
  // MKL for AVX-512, whose calls take long only beside the smallest products.
  constexpr BlockLimits kWholeVectors = {12000, 12000, 0};
  return blas_properties().foreign_mkl ? kHalfVectors : kWholeVectors;
}

bool blocks_are_faster(const at::Tensor& input, const at::Tensor& weight) {
  if (input.scalar_type() != at::kFloat || instruction_set().vector_bytes < 64) return false;
  const auto limits = block_limits();
  if (are_by_columns(input, weight)) {
    return weight.size(1) <= limits.gradient_depth ||
           input.size(0) <= limits.gradient / weight.size(0);
  }
  return weight.numel() <= limits.weight && (weight.stride(1) == 1 || weight.stride(0) == 1);
}

bool pointwise_is_faster(const at::Tensor& input, const at::Tensor& weight) {
  constexpr int64_t kMultiplyAdds = 1 << 22;  // with fewer, calling it costs too much
  const auto& processor = *instruction_sets().back();
  if (!blas_properties().foreign_mkl || !pointwise_operator()) return false;
  if (!at::globalContext().userEnabledMkldnn()) return false;
  if (processor.vector_bytes < 64 || input.numel() < kMultiplyAdds / weight.size(0)) return false;
  if (input.scalar_type() == at::kFloat) {
    return weight.is_contiguous() || weight.t().is_contiguous();
  }
  // If both operands are transposed, at::mm is as fast, and does not copy them.
  return input.scalar_type() == at::kBFloat16 && processor.multiplies_bfloat16 &&
         (weight.is_contiguous() || (weight.t().is_contiguous() && input.is_contiguous()));
}

/// Throws c10::ValueError unless a layer with a packed weight can be computed.
void check_packed(const at::Tensor& input, const LinearParameters& layer) {
  constexpr auto kLinear = "linear";
  const auto& [weight, bias] = layer;
  HEED_CHECK(!is_recorded(weight), "{}: a packed weight must not require grad: it stays as it is",
             kLinear);
  HEED_CHECK(calls_reach_kernels() && is_plain(input),
             "{}: x must be a plain CPU tensor beside a packed weight, without transforms, tracing "
             "and forward-mode differentiation",
             kLinear);
  HEED_CHECK(input.dim() >= 1 && input.size(-1) == weight.size(1),
             "{}: x dim -1 must be in_features ({}); x {}", kLinear, weight.size(1), shape(input));
  if (is_converted_by_autocast(input)) return;
  check_same_dtype(kLinear, "x", input, "weight", weight);
}

/// Whether LibTorch's product may read one element beyond each row of `input` [.., K]: with AMX, it
/// multiplies pairs of bfloat16, and 0 with the element after an odd row. That is NaN if the
/// element is.
bool is_read_beyond_rows(const at::Tensor& input) {
  return blas_properties().bfloat16_tiles && input.scalar_type() == at::kBFloat16 &&
         is_plain(input) && input.dim() >= 1 && input.size(-1) % 2 == 1;
}

/// Computes the layers by `product`, without autograd.
std::vector<at::Tensor> multiply(LinearProduct product, const at::Tensor& input,
                                 const std::vector<LinearParameters>& layers) {
  if (product == LinearProduct::few_rows) return linear_of_few_rows(input, layers);
  if (product == LinearProduct::in_blocks) return linear_in_blocks(input, layers);
  return c10::fmap(layers, [&](const auto& layer) {
    return product == LinearProduct::pointwise
               ? multiply_pointwise(input, layer)
               : at::linear(zero_after_rows(input), layer.weight, layer.bias);
  });
}

/// The tensors that a node keeps of its input: the input, or what its recipe needs, which is kept
/// anyway.
variable_list kept_of_input(AutogradContext* context, const at::Tensor& input) {
  const auto recipe = find_recipe(input);
  auto sources = recipe ? recipe->sources_of(input) : variable_list();
  if (sources.empty()) return {input};
  context->saved_data["input_recipe"] = c10::IValue::make_capsule(recipe);
  return sources;
}

/// The input, from what kept_of_input has kept. If autograd records, it has its history, as an
/// input that was kept would.
at::Tensor input_of(AutogradContext* context, const variable_list& kept) {
  const auto found = context->saved_data.find("input_recipe");
  if (found == context->saved_data.end()) return kept[0];
  const auto capsule = found->second.toCapsule();
  auto input = static_cast<const Recipe&>(*capsule).compute(kept);
  if (at::GradMode::is_enabled()) {
    const auto edge = torch::autograd::get_current_node()->next_edge(0);
    torch::autograd::impl::set_gradient_edge(input, edge);
  }
  return input;
}

/// The gradient of the common input of layers: the sum of gradient W over the layers. `gradients`
/// are those of the outputs; some may be undefined. `weight_of(i)` returns a weight.
template <typename WeightOf>
at::Tensor input_gradient(const variable_list& gradients, const WeightOf& weight_of) {
  at::Tensor sum;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const auto part = detail::linear(gradients[i], weight_of(i).t());
    if (!sum.defined()) {
      sum = part;
    } else if (at::GradMode::is_enabled()) {
      sum = sum + part;
    } else {
      sum.add_(part);
    }
  }
  return sum;
}

/// Layers with the same input, recorded for autograd. `linear` computes their gradients, so these
/// can be differentiated again.
struct RecordedLinear : public torch::autograd::Function<RecordedLinear> {
  /// `parameters` are all weights, then all defined biases.
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               at::TensorList parameters, LinearProduct product,
                               const std::vector<LinearParameters>* layers) {
    const auto weights = parameters.slice(0, layers->size());
    variable_list saved(layers->size());
    if (input.requires_grad()) std::copy(weights.begin(), weights.end(), saved.begin());
    const bool of_weights = std::any_of(weights.begin(), weights.end(),
                                        [](const auto& weight) { return weight.requires_grad(); });
    if (of_weights) {
      const auto kept = kept_of_input(context, input);
      saved.insert(saved.end(), kept.begin(), kept.end());
    }
    context->save_for_backward(std::move(saved));
    std::vector<int64_t> with_bias;
    for (size_t i = 0; i < layers->size(); ++i) {
      if ((*layers)[i].bias.defined()) with_bias.push_back(static_cast<int64_t>(i));
    }
    context->saved_data["with_bias"] = with_bias;
    context->set_materialize_grads(false);
    return multiply(product, input, *layers);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto with_bias = context->saved_data["with_bias"].toIntVector();
    const auto layers = gradients.size();
    variable_list result(1 + layers + with_bias.size() + 2);
    if (context->needs_input_grad(0)) {
      result[0] = input_gradient(gradients, [&](size_t i) { return saved[i]; });
    }
    const auto rows = [](const at::Tensor& tensor) {
      return tensor.reshape({-1, tensor.size(-1)});
    };
    at::Tensor input;  // rows of it, when a weight's gradient needs them
    for (size_t i = 0; i < layers; ++i) {
      if (!gradients[i].defined() || !context->needs_input_grad(1 + i)) continue;
      if (!input.defined()) {
        input =
            rows(input_of(context, {saved.begin() + static_cast<int64_t>(layers), saved.end()}));
      }
      result[1 + i] = detail::linear(rows(gradients[i]).t(), input.t());
    }
    for (size_t i = 0; i < with_bias.size(); ++i) {
      const auto& gradient = gradients[static_cast<size_t>(with_bias[i])];
      if (!gradient.defined() || !context->needs_input_grad(1 + layers + i)) continue;
      result[1 + layers + i] = rows(gradient).sum(0);
    }
    return result;
  }
};

std::vector<at::Tensor> record(LinearProduct product, const at::Tensor& input,
                               const std::vector<LinearParameters>& layers) {
  auto parameters = c10::fmap(layers, [](const auto& layer) { return layer.weight; });
  for (const auto& layer : layers) {
    if (layer.bias.defined()) parameters.push_back(layer.bias);
  }
  return RecordedLinear::apply(input, at::TensorList(parameters), product, &layers);
}

/// Layers with the same input and with packed weights, which have no gradients: that of the input
/// is the product with the weights, each unpacked when it is needed.
struct RecordedPacked : public torch::autograd::Function<RecordedPacked> {
  /// The biases of `layers` have no gradients either.
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::vector<LinearParameters>* layers) {
    context->saved_data["weights"] =
        c10::fmap(*layers, [](const auto& layer) { return layer.weight; });
    context->set_materialize_grads(false);
    return linear_packed(input, *layers);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto weights = context->saved_data["weights"].toTensorVector();
    const auto weight_of = [&](size_t i) {
      return unpack_weight(*packed_weight_of(weights[i])).to(gradients[i].scalar_type());
    };
    return {input_gradient(gradients, weight_of), {}};
  }
};

std::vector<at::Tensor> multiply_packed(const at::Tensor& x,
                                        const std::vector<LinearParameters>& layers,
                                        OutputFunction function = OutputFunction::identity) {
  const auto input = x.defined() && x.is_cpu() ? x.resolve_neg() : x;
  for (const auto& layer : layers) check_packed(input, layer);
  const auto dtype = is_converted_by_autocast(input) ? at::autocast::get_autocast_dtype(at::kCPU)
                                                     : input.scalar_type();
  const auto operands = c10::fmap(layers, [&](const auto& layer) {
    const auto& bias = layer.bias;
    const bool is_added = bias.defined() && !is_recorded(bias);
    return LinearParameters{layer.weight, is_added ? bias.to(dtype).contiguous() : at::Tensor()};
  });
  auto outputs = is_recorded(input) ? RecordedPacked::apply(input.to(dtype), &operands)
                                    : linear_packed(input.to(dtype), operands, function);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& bias = layers[i].bias;
    if (bias.defined() && is_recorded(bias)) outputs[i] = outputs[i] + bias.to(dtype);
  }
  return outputs;
}

}  // namespace

LinearProduct linear_product(const at::Tensor& input, const at::Tensor& weight,
                             const at::Tensor& bias) {
  if (packed_weight_of(weight) != nullptr) return LinearProduct::packed;
  const bool has_mkl = blas_properties().foreign_mkl || blas_properties().wide_vectors;
  if (!has_mkl || !can_record(input, weight, bias)) return LinearProduct::libtorch;
  if (few_rows_are_faster(input, weight)) return LinearProduct::few_rows;
  if (blocks_are_faster(input, weight)) return LinearProduct::in_blocks;
  if (pointwise_is_faster(input, weight)) return LinearProduct::pointwise;
  return LinearProduct::libtorch;
}

at::Tensor zero_after_rows(const at::Tensor& input) {
  if (!is_read_beyond_rows(input)) return input;
  return at::constant_pad_nd(input, {0, 1}).narrow(-1, 0, input.size(-1));
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto product = linear_product(input, weight, bias);
  if (product == LinearProduct::packed) return multiply_packed(input, {{weight, bias}}).front();
  const bool records = is_recorded(input, weight, bias);
  if (product == LinearProduct::libtorch) {
    // at::linear would keep an input that has a recipe.
    const bool keeps_less = records && can_record(input, weight, bias) && find_recipe(input);
    if (!keeps_less) return at::linear(zero_after_rows(input), weight, bias);
  }
  const std::vector<LinearParameters> layer = {{weight, bias}};
  return (records ? record(product, input, layer) : multiply(product, input, layer)).front();
}

std::optional<at::Tensor> linear_with(OutputFunction function, const at::Tensor& input,
                                      const at::Tensor& weight, const at::Tensor& bias) {
  if (packed_weight_of(weight) == nullptr || !has_kernels() || is_recorded(input, weight, bias)) {
    return {};
  }
  return multiply_packed(input, {{weight, bias}}, function).front();
}

at::Tensor linear_in_memory(at::Tensor& memory, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias) {
  if (linear_product(input, weight, bias) != LinearProduct::libtorch) {
    return detail::linear(input, weight, bias);
  }
  if (!memory.defined()) memory = at::empty({input.size(0), weight.size(0)}, input.options());
  auto output = memory.narrow(0, 0, input.size(0));
  return bias.defined() ? at::addmm_out(output, bias, input, weight.t())
                        : at::mm_out(output, input, weight.t());
}

void write_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output) {
  auto memory = output;
  const auto product = linear_in_memory(memory, input, weight, {});
  if (!product.is_alias_of(output)) output.copy_(product);
}

void add_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& sum) {
  if (linear_product(input, weight, {}) == LinearProduct::in_blocks) {
    return add_linear_in_blocks(input, weight, sum);
  }
  sum.addmm_(input, weight.t());
}

std::vector<at::Tensor> linear_together(const at::Tensor& input,
                                        const std::vector<LinearParameters>& layers) {
  const auto& [weight, bias] = layers.front();
  const auto product = linear_product(input, weight, bias);
  const bool records = is_recorded(input, weight, bias);
  const bool in_one = product != LinearProduct::libtorch &&
                      std::all_of(layers.begin() + 1, layers.end(), [&](const auto& layer) {
                        return linear_product(input, layer.weight, layer.bias) == product &&
                               is_recorded(input, layer.weight, layer.bias) == records;
                      });
  if (in_one && product == LinearProduct::packed) return multiply_packed(input, layers);
  if (in_one) return records ? record(product, input, layers) : multiply(product, input, layers);
  const auto converted = cast_for_product(input);  // once, and not for each layer
  return c10::fmap(layers, [&](const auto& layer) {
    return detail::linear(converted, layer.weight, layer.bias);
  });
}

std::vector<at::Tensor> project_together(const std::vector<torch::nn::Linear>& linears,
                                         const at::Tensor& input) {
  const bool plain = std::all_of(linears.begin(), linears.end(), [](const auto& linear) {
    return stand_in_of(*linear) == nullptr;
  });
  if (!plain) return c10::fmap(linears, [&](const auto& linear) { return project(linear, input); });
  return linear_together(input, c10::fmap(linears, [](const auto& linear) {
                           return LinearParameters{linear->weight, linear->bias};
                         }));
}

}  // namespace heed::detail

namespace heed {

at::Tensor linear(const torch::nn::Linear& fc, const at::Tensor& x) {
  constexpr auto kLinear = "linear";
  HEED_CHECK(!fc.is_empty(), "{}: fc must not be empty", kLinear);
  detail::check_defined(kLinear, "x", x);
  return detail::project(fc, detail::sharing(*fc).enter(x));
}

}  // namespace heed

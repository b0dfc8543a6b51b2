#pragma once

#include <heed/attend.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <tuple>

namespace heed::detail {

/// Applies a module's Linear where the module is const.
at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input);

/// Options of one call: the mask that was passed, and dropout in training mode only.
AttendOptions call_options(const std::optional<at::Tensor>& mask, double dropout, bool training);

/// What MultiHeadAttention and GroupQueryAttention share: project, attend by heads, project.
struct HeadProjections {
  const char* function;  // names errors
  const torch::nn::Linear& query;
  const torch::nn::Linear& key;
  const torch::nn::Linear& value;
  const torch::nn::Linear& output;
  int64_t num_heads;
  const char* key_dim_name = "emb_dim";  // the options that fix key's and value's last dimension
  const char* value_dim_name = "emb_dim";

  at::Tensor forward(const at::Tensor& query_input, const at::Tensor& key_input,
                     const at::Tensor& value_input, const AttendOptions& options) const;
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(const at::Tensor& query_input,
                                                          const at::Tensor& key_input,
                                                          const at::Tensor& value_input,
                                                          const AttendOptions& options) const;

 private:
  void check(const at::Tensor& query_input, const at::Tensor& key_input,
             const at::Tensor& value_input) const;
  at::Tensor forward_nested(const at::Tensor& query_input, const at::Tensor& key_input,
                            const at::Tensor& value_input, const AttendOptions& options) const;
};

}  // namespace heed::detail

// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/sequence_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/ranges.h>
#include <heed/distributed/context_parallel.h>

#include <utility>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/random_state.h"
#include "core/tangents.h"
#include "distributed/collectives.h"

namespace heed::distributed::detail {

namespace {

template <typename Number>
std::string number(const std::optional<Number>& value) {
  return value ? fmt::format("{}", *value) : "none";
}

/// Describes, line by line, all that must be the same in all processes.
std::string describe(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttendOptions& options) {
  const auto tensor = [](const char* name, const std::optional<at::Tensor>& tensor) {
    if (!tensor) return fmt::format("no {}\n", name);
    const bool differentiated = at::GradMode::is_enabled() && tensor->requires_grad();
    return fmt::format("{} {} {}{}\n", name, heed::detail::shape(*tensor),
                       c10::toString(tensor->scalar_type()),
                       differentiated ? " requires grad" : "");
  };
  return tensor("query", query) + tensor("key", key) + tensor("value", value) +
         tensor("mask", options.mask()) + tensor("bias", options.bias()) +
         tensor("alibi_slopes", options.alibi_slopes()) +
         tensor("relative_bias", options.relative_bias()) + tensor("sinks", options.sinks()) +
         tensor("documents", options.documents()) +
         tensor("key_documents", options.key_documents()) +
         fmt::format("causal {}\nwindow {}\nleft_window {}\nright_window {}\ntop_left {}\n",
                     options.causal(), number(options.window()), number(options.left_window()),
                     number(options.right_window()), options.top_left()) +
         fmt::format("dropout {}\nscale {}\nsoftcap {}", options.dropout(), number(options.scale()),
                     number(options.softcap()));
}

/// Which keys the options let queries see, by their positions alone.
Visibility make_visibility(SequenceShards queries, SequenceShards keys,
                           const AttendOptions& options) {
  auto left = options.left_window(), right = options.right_window();
  if (options.window()) left = right = *options.window() - 1;
  if (options.causal()) right = 0;
  return {queries, keys, left, right, options.top_left()};
}

/// Refuses options that speak of single queries or keys, of which each process has only some.
void check_absent(const char* function, const AttendOptions& options) {
  HEED_CHECK(!options.block_mask(), "{}: block_mask must be absent: pass its mask() as mask",
             function);
  const std::pair<const char*, bool> given[] = {
      {"global_tokens", options.global_tokens().has_value()},
      {"query_lengths", options.query_lengths().has_value()},
      {"key_lengths", options.key_lengths().has_value()},
      {"relative_positions", options.relative_positions().has_value()}};
  for (const auto& [name, is_given] : given) {
    HEED_CHECK(!is_given, "{}: {} must be absent: processes share the sequence", function, name);
  }
  HEED_CHECK(options.mask_batch() == MaskBatch::each,
             "{}: mask_batch must be each: processes share the sequence", function);
}

/// Refuses arguments with which attention cannot be computed in parts.
void check_supported(const char* function, const at::Tensor& query, const AttendOptions& options,
                     const at::Tensor& key, const at::Tensor& value) {
  HEED_CHECK(options.dropout() == 0.0 || query.is_cpu(),
             "{}: dropout ({}) needs CPU tensors; query device ({})", function, options.dropout(),
             query.device().str());
  for (const auto* tensor : {&query, &key, &value}) {
    TORCH_CHECK_NOT_IMPLEMENTED(!heed::detail::has_tangent(*tensor), function,
                                ": forward-mode differentiation is not supported");
  }
}

void check_length(const char* function, const char* name, const at::Tensor& tensor) {
  HEED_CHECK(tensor.size(2) % kChunks == 0,
             "{}: {} dim 2 ({}) must be even, as shard_sequence makes it; {} {}", function, name,
             tensor.size(2), name, heed::detail::shape(tensor));
}

/// Narrows mask and bias to this process's number of keys, so that `check_attend` can check them.
/// They have a row for each of this process's queries, and a column for each key of all processes.
AttendOptions with_own_columns(const AttendOptions& options, const at::Tensor& key,
                               int64_t processes, const char* function) {
  auto own = options;
  const auto narrow = [&](const char* name, const std::optional<at::Tensor>& scores) {
    const auto columns = key.size(2) * processes;
    HEED_CHECK(!scores->defined() || scores->dim() == 0 || scores->size(-1) == columns,
               "{}: {} dim {} ({}) must equal S ({}), the keys of all processes; {} {}, key {}",
               function, name, scores->dim() - 1, scores->size(-1), columns, name,
               heed::detail::shape(*scores), heed::detail::shape(key));
    return scores->defined() && scores->dim() > 0 ? scores->narrow(-1, 0, key.size(2)) : *scores;
  };
  if (options.mask()) own.mask(narrow("mask", options.mask()));
  if (options.bias()) own.bias(narrow("bias", options.bias()));
  return own;
}

}  // namespace

SequenceCall::SequenceCall(const char* function, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const ProcessGroup& group,
                           const AttendOptions& options)
    : function_(function), group_(group), options_(options) {
  HEED_CHECK(group, "{}: group must not be null", function);
  check_same(group, function, "call", [&] {
    heed::detail::check_plain_keys(function, options);
    check_absent(function, options);
    heed::detail::check_tensors(function, query, key, value, /*rank=*/4);
    check_length(function, "query", query);
    check_length(function, "key", key);
    heed::detail::check_attend(function, query, key, value,
                               with_own_columns(options, key, processes(), function));
    check_supported(function, query, options, key, value);
    return describe(query, key, value, options);
  });
  visibility_ = make_visibility({processes(), query.size(2) * processes()},
                                {processes(), key.size(2) * processes()}, options);
  heads_ = query.size(1);
  dropout_key_ = heed::detail::draw_dropout_key(options.dropout());
  run_exchange(group, function, [&] { share_key_and_documents(); });
}

void SequenceCall::share_key_and_documents() {
  if (options_.dropout() > 0.0) {
    const auto key = at::scalar_tensor(static_cast<int64_t>(dropout_key_), at::kLong);
    broadcast(group_, fmt::format("{}: broadcast of dropout's key", function_), key);
    dropout_key_ = static_cast<uint64_t>(key.item<int64_t>());
  }
  const auto& documents = options_.documents();
  if (!documents) return;
  const auto& of_keys = options_.key_documents();
  options_.key_documents(unshard_sequence(of_keys ? *of_keys : *documents, -1, group_));
}

at::Tensor SequenceCall::bias_block(const at::Tensor& scores, int64_t query, int64_t owner,
                                    int64_t key) const {
  const auto rows = visibility_.queries.chunk_length();
  const auto of_keys =
      scores.narrow(-1, visibility_.keys.first(owner, key), visibility_.keys.chunk_length());
  return scores.size(-2) == 1 ? of_keys : of_keys.narrow(-2, query * rows, rows);
}

AttendOptions SequenceCall::options_of(int64_t query, int64_t owner, int64_t key) const {
  const auto rows = visibility_.queries.chunk_length();
  const auto columns = visibility_.keys.chunk_length();
  const auto first_key = visibility_.keys.first(owner, key);
  const auto block_of = [&](const at::Tensor& scores) {
    return bias_block(scores, query, owner, key);
  };
  auto options = options_;
  if (options_.mask()) options.mask(block_of(*options_.mask()));
  if (options_.bias()) options.bias(block_of(*options_.bias()));
  if (options_.documents() && options_.key_documents()) {
    options.documents(options_.documents()->narrow(-1, query * rows, rows));
    options.key_documents(options_.key_documents()->narrow(-1, first_key, columns));
  }
  if (owner != rank() || query != key) options.sinks(std::nullopt);  // one part has the sinks
  return options;
}

heed::detail::Part SequenceCall::part(int64_t query, int64_t owner, int64_t key,
                                      bool for_backward) const {
  auto part = part_of_heads(0);
  part.first_query = visibility_.queries.first(rank(), query);
  part.first_key = visibility_.keys.first(owner, key);
  part.for_backward = for_backward;
  return part;
}

heed::detail::Part SequenceCall::part_of_heads(int64_t first_head) const {
  return {/*first_query=*/0,
          /*first_key=*/0,         first_head, visibility_.queries.length,
          visibility_.keys.length, heads_,     dropout_key_};
}

}  // namespace heed::distributed::detail

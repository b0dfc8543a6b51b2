// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/export.h>

#include <cstdint>
#include <optional>
#include <string>

namespace heed::detail {

/// Checks query, key and value of `attend` (rank 4) or `attend_varlen` (rank 3), and their scales.
HEED_API void check_tensors(const char* function, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, int64_t rank,
                            const AttendOptions& options = {});

/// Whether keys and values are quantized.
inline bool has_scales(const AttendOptions& options) {
  return options.key_scales() || options.value_scales();
}

/// Checks quantized keys or values and their scales; `name` is "key" or "value".
void check_scales(const char* function, const std::string& name, const char* tensor_name,
                  const at::Tensor& tensor, const std::optional<at::Tensor>& scales);

/// Checks that the options have none that speaks of single queries or keys of a batch, such as a
/// mask, as `why` says.
void check_no_scores(const char* function, const char* why, const AttendOptions& options);

/// Checks that the options have neither scales of quantized keys nor parents of drafts.
HEED_API void check_plain_keys(const char* function, const AttendOptions& options);

/// The sizes of a call's scores [B, H, L, S], the query and key that errors show, and the batches
/// that a mask or bias may have.
struct ScoreSizes {
  const at::Tensor& query;
  const at::Tensor& key;
  int64_t batch, heads, query_length, key_length;
  MaskBatch mask_batch = MaskBatch::each;
};

void check_mask_dtype(const char* function, const char* name, const at::Tensor& mask,
                      bool takes_bias);

/// Checks a mask. Errors call it `name`.
void check_mask(const char* function, const char* name, const at::Tensor& mask,
                const ScoreSizes& sizes, bool takes_bias = true);

void check_block_mask(const char* function, const BlockMask& mask, const ScoreSizes& sizes);

void check_bias(const char* function, const at::Tensor& bias, const ScoreSizes& sizes);

/// Checks how many queries and keys each sequence has. Lengths on another device than the CPU are
/// not read, because that would wait for it.
void check_sequence_lengths(const char* function, const AttendOptions& options,
                            const ScoreSizes& sizes);

void check_global_tokens(const char* function, const at::Tensor& tokens, const ScoreSizes& sizes);

/// Checks the relative positions of a relative bias.
void check_relative_positions(const char* function, const AttendOptions& options,
                              const ScoreSizes& sizes);

/// Checks the document of each query and key.
void check_documents(const char* function, const AttendOptions& options, const ScoreSizes& sizes);

/// Checks a draft's parents, [L] or [B, L], and that no option contradicts them.
void check_draft(const char* function, const at::Tensor& parents, const AttendOptions& options,
                 const ScoreSizes& sizes);

/// Checks that no option contradicts a draft.
void check_draft_options(const char* function, const AttendOptions& options);

/// Checks the options that have values for each head: ALiBi's slopes, which may be [B, H] if the
/// query is a batch; sinks; and a relative bias.
void check_head_tensors(const char* function, const at::Tensor& query,
                        const AttendOptions& options);

/// Checks windows, dropout, scale and softcap.
void check_score_options(const char* function, const AttendOptions& options);

/// Checks that scale and softcap are representable in the type in which `dtype` is computed.
void check_precision(const char* function, at::ScalarType dtype, const AttendOptions& options);

/// Checks every argument of `attend`.
HEED_API void check_attend(const char* function, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const AttendOptions& options);

}  // namespace heed::detail

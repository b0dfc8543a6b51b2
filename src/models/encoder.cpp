// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/functional.h>
#include <heed/transformer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "models/block_attention.h"
#include "models/block_norms.h"
#include "models/checkpointed_block.h"
#include "modules/attentions/cached_sizes.h"
#include "modules/attentions/given_inputs.h"
#include "modules/caches/caches.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kEncoder = "Encoder";

// More layers than anyone has trained. Blocks are made one by one, and too many fill the memory.
constexpr int64_t kMostLayers = 1 << 20;

TransformerBlockImpl& block_of(const torch::nn::ModuleList& blocks, size_t i) {
  return *blocks.ptr()->ptr<TransformerBlockImpl>(i);
}

RelativePositionBiasImpl& bias_of(const torch::nn::ModuleList& biases, size_t i) {
  return *biases.ptr()->ptr<RelativePositionBiasImpl>(i);
}

bool have_cross_attention(const torch::nn::ModuleList& blocks) {
  return std::any_of(blocks->begin(), blocks->end(), [](const auto& block) {
    return block->template as<TransformerBlockImpl>()->options.cross_attention();
  });
}

/// The inputs of each block, made of a stack's: its projected memory, its relative bias, and the
/// angles of its rotary embedding. Biases and angles are computed once for all blocks that share
/// them.
class BlockInputs {
 public:
  /// x [B, L, E] are the tokens; null with a cache, where blocks refuse positions.
  BlockInputs(const EncoderImpl& stack, const at::Tensor* x, const TransformerInputs& inputs)
      : blocks_(stack.blocks),
        biases_(stack.relative_biases),
        x_(x),
        inputs_(inputs),
        own_(inputs),
        has_memory_(have_cross_attention(stack.blocks)) {
    const auto& blocks = stack.blocks;
    const auto size = inputs.projected_memory().size();
    HEED_CHECK(size == 0 || size == blocks->size(),
               "{}: projected_memory size ({}) must equal num_layers ({})", kEncoder, size,
               blocks->size());
    HEED_CHECK(!biases_ || !inputs.relative_bias(),
               "{}: relative_bias must be absent: the stack has its own", kEncoder);
    if (!inputs.rotary_angles()) return;
    size_t first = 0;
    while (first < blocks->size() && !detail::rotary_of(block_of(blocks, first))) ++first;
    HEED_CHECK(first < blocks->size(),
               "{}: rotary_angles must be absent: no block has a rotary embedding", kEncoder);
  }

  /// Returns the inputs of block i, which stay until the next call.
  const TransformerInputs& of(size_t i) {
    const auto& block = block_of(blocks_, i);
    const auto& memories = inputs_.projected_memory();
    if (!memories.empty()) own_.projected_memory({memories[i]});
    if (biases_ && i < biases_->size())
      own_.relative_bias(bias_of(biases_, i).relative().relative_bias);
    const bool gives_angles = inputs_.rotary_angles() || (x_ != nullptr && inputs_.positions());
    if (gives_angles) own_.rotary_angles(angles_of(block));
    const bool reads_memory = block.cross_attention || !has_memory_;  // or it refuses a memory
    if (block.options.self_attention() && reads_memory) return own_;
    part_ = block.options.self_attention() ? without_memory(own_) : memory_alone(own_);
    return part_;
  }

 private:
  /// The inputs of the self-attention.
  static TransformerInputs without_memory(TransformerInputs inputs) {
    return inputs.memory(std::nullopt).projected_memory({}).memory_mask(std::nullopt);
  }
  /// The inputs of the cross-attention.
  static TransformerInputs memory_alone(const TransformerInputs& inputs) {
    return TransformerInputs()
        .memory(inputs.memory())
        .projected_memory(inputs.projected_memory())
        .memory_mask(inputs.memory_mask());
  }

  std::optional<RotaryAngles> angles_of(const TransformerBlockImpl& block) {
    const auto& rotary = detail::rotary_of(block);
    if (!rotary) return std::nullopt;
    if (inputs_.rotary_angles()) return inputs_.rotary_angles();
    auto& angles = angles_[rotary.get()];
    if (!angles) {
      angles = detail::given_angles(kEncoder, AttentionInputs(inputs_), rotary, *x_,
                                    detail::shared_sequence_of(block).get());
    }
    return angles;
  }

  const torch::nn::ModuleList &blocks_, &biases_;
  const at::Tensor* const x_;
  const TransformerInputs& inputs_;
  TransformerInputs own_, part_;
  const bool has_memory_;  // a block of the stack reads one
  std::map<const RotaryEmbeddingImpl*, std::optional<RotaryAngles>> angles_;
};

const TransformerBlockOptions& first_of(const std::vector<TransformerBlockOptions>& blocks) {
  HEED_CHECK(!blocks.empty(), "EncoderOptions: blocks must not be empty");
  return blocks.front();
}

/// Throws if a relative bias does not fit the heads of a block.
void check_relative_bias(const EncoderOptions& options, const TransformerBlockOptions& block) {
  const auto& bias = options.relative_bias();
  if (!bias) return;
  HEED_CHECK(bias->head_num() == block.attention().head_num(),
             "{}: relative_bias head_num ({}) must equal attention head_num ({})", kEncoder,
             bias->head_num(), block.attention().head_num());
  HEED_CHECK(bias->image_window().empty(),
             "{}: relative_bias image_window must be empty: a stack has sequences", kEncoder);
}

void check_blocks(const EncoderOptions& options) {
  const auto& blocks = options.blocks();
  detail::check_probability(kEncoder, "final_dropout", options.final_dropout());
  HEED_CHECK(options.shared_relative_bias() || options.relative_bias(),
             "{}: shared_relative_bias must be true without relative_bias", kEncoder);
  check_relative_bias(options, options.block());
  detail::check_positive(kEncoder, "num_layers", options.num_layers());
  HEED_CHECK(options.num_layers() <= kMostLayers, "{}: num_layers ({}) must be at most {}",
             kEncoder, options.num_layers(), kMostLayers);
  if (blocks.empty()) return;
  HEED_CHECK(static_cast<int64_t>(blocks.size()) == options.num_layers(),
             "{}: blocks size ({}) must equal num_layers ({})", kEncoder, blocks.size(),
             options.num_layers());
  const auto& first = options.block();
  for (size_t i = 0; i < blocks.size(); ++i) {
    HEED_CHECK(blocks[i].emb_dim() == first.emb_dim(),
               "{}: blocks[{}] emb_dim ({}) must equal block emb_dim ({})", kEncoder, i,
               blocks[i].emb_dim(), first.emb_dim());
    check_relative_bias(options, blocks[i]);
  }
}

/// Gives the last block the rotary embedding of the first block with equal options, so that they
/// compute the angles once.
void share_rotary(const torch::nn::ModuleList& blocks) {
  const auto last = blocks->size() - 1;
  auto& rotary = detail::rotary_of(block_of(blocks, last));
  if (!rotary) return;
  for (size_t i = 0; i < last; ++i) {
    const auto& earlier = detail::rotary_of(block_of(blocks, i));
    if (!earlier || !(earlier->options == rotary->options)) continue;
    rotary = earlier;
    return;
  }
}

/// The Linears that end in a block's residual connections.
std::vector<const torch::nn::LinearImpl*> last_linears(const TransformerBlockImpl& block) {
  std::vector<const torch::nn::LinearImpl*> last;
  if (block.options.self_attention()) {
    last.push_back(
        detail::visit_attention(block, [](const auto& attention) { return attention.fc_o.get(); }));
  }
  if (block.cross_attention) last.push_back(block.cross_attention->fc_o.get());
  for (const auto& module : block.feed_forward_module()->modules()) {
    const auto* layer = module->as<FeedForward>();
    if (layer != nullptr) last.push_back(layer->fc_out.get());
  }
  return last;
}

/// The layers of the user's own that a block has.
std::vector<std::shared_ptr<torch::nn::Module>> own_layers(const TransformerBlockImpl& block) {
  std::vector<std::shared_ptr<torch::nn::Module>> own;
  if (block.options.has_own_feed_forward()) own.push_back(block.feed_forward_module());
  for (const auto& place : detail::kNormPlaces) {
    if (block.options.has_own_norm()) own.push_back(block.norm_module(place.name));
  }
  return own;
}

/// Initializes a block as GPT-2 does, except layers of the user's own.
void initialize(TransformerBlockImpl& block, double residual_scale) {
  block.reset_parameters();
  const auto last = last_linears(block);
  const auto own = own_layers(block);
  for (const auto& child : block.children()) {
    const bool is_own = std::count(own.begin(), own.end(), child) > 0;
    if (!is_own) detail::initialize_linears(*child, last, residual_scale);
  }
}

/// The block whose cache suits all blocks: one without a window, or the one with the widest.
const TransformerBlockImpl& widest(const torch::nn::ModuleList& blocks) {
  const auto window = [](const TransformerBlockImpl& block) {
    constexpr auto kNone = std::numeric_limits<int64_t>::max();
    if (!block.options.self_attention()) return int64_t{0};
    if (!block.attention) return kNone;
    return detail::causal_window(block.options.attention()).value_or(kNone);
  };
  const auto* found = &block_of(blocks, 0);
  for (size_t i = 1; i < blocks->size(); ++i) {
    const auto& block = block_of(blocks, i);
    if (window(block) > window(*found)) found = &block;
  }
  return *found;
}

void check_equal_heads(const torch::nn::ModuleList& blocks) {
  const auto sizes = [](const TransformerBlockImpl& block) {
    const auto own = detail::visit_attention(
        block, [](const auto& attention) { return detail::cached_sizes(attention); });
    return std::tuple(own.groups, own.head_dim, own.value_head_dim);
  };
  std::optional<size_t> first;
  for (size_t i = 0; i < blocks->size(); ++i) {
    if (!block_of(blocks, i).options.self_attention()) continue;
    if (!first) first = i;
    HEED_CHECK(sizes(block_of(blocks, i)) == sizes(block_of(blocks, *first)),
               "{}: blocks[{}] key/value heads must equal those of blocks[{}] in number and size "
               "with a PagedKVCache",
               kEncoder, i, *first);
  }
}

/// The number of blocks with self-attention, each of which is a layer of a PagedKVCache.
int64_t cached_layers(const torch::nn::ModuleList& blocks) {
  return std::count_if(blocks->begin(), blocks->end(), [](const auto& block) {
    return block->template as<TransformerBlockImpl>()->options.self_attention();
  });
}

/// The way in which processes share the blocks.
const LayerSharing& sharing(const torch::nn::ModuleList& blocks) {
  return detail::sharing(*detail::first_linear(block_of(blocks, 0)));
}

}  // namespace

EncoderOptions::EncoderOptions(std::vector<TransformerBlockOptions> blocks)
    : block_(first_of(blocks)),
      num_layers_(static_cast<int64_t>(blocks.size())),
      blocks_(std::move(blocks)) {}

EncoderImpl::EncoderImpl(const EncoderOptions& options) : options(options) { reset(); }

void EncoderImpl::reset() {
  check_blocks(options);
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.num_layers(); ++i) {
    const auto& own = options.blocks();
    blocks->push_back(TransformerBlock(own.empty() ? options.block() : own[i]));
    share_rotary(blocks);
  }
  const auto& block = options.block();
  if (const auto& bias = options.relative_bias()) {
    relative_biases = register_module("relative_biases", torch::nn::ModuleList());
    const auto count = options.shared_relative_bias() ? 1 : options.num_layers();
    for (int64_t i = 0; i < count; ++i) relative_biases->push_back(RelativePositionBias(*bias));
  }
  if (options.final_norm().value_or(block.norm_placement() == NormPlacement::pre)) {
    detail::make_norm(kEncoder, *this, "final_norm", block, final_norm, own_final_norm_);
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

std::shared_ptr<torch::nn::Module> EncoderImpl::clone(
    const std::optional<at::Device>& device) const {
  // LibTorch would pass over a norm of the user's that has no `clone`, whose own throws.
  if (!own_final_norm_.is_empty()) own_final_norm_.ptr()->clone(device);
  auto copy = Cloneable::clone(device);
  const auto& copies = copy->as<EncoderImpl>()->blocks;
  // Rotary embeddings are not registered: each copied block has made one of its own.
  std::map<const RotaryEmbeddingImpl*, RotaryEmbedding> shared;
  for (size_t i = 0; i < blocks->size(); ++i) {
    const auto& rotary = detail::rotary_of(block_of(blocks, i));
    auto& own = detail::rotary_of(block_of(copies, i));
    if (rotary) own = shared.emplace(rotary.get(), own).first->second;
  }
  return copy;
}

void EncoderImpl::reset_parameters() {
  const auto residual_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(blocks->size()));
  for (size_t i = 0; i < blocks->size(); ++i) {
    initialize(block_of(blocks, i), residual_scale);
  }
  const auto count = relative_biases ? relative_biases->size() : 0;
  for (size_t i = 0; i < count; ++i) bias_of(relative_biases, i).reset_parameters();
  if (final_norm) final_norm->reset_parameters();
}

void EncoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kEncoder)
      .show("num_layers", options.num_layers())
      .option("final_norm", options.final_norm())
      .option("shared_relative_bias", options.shared_relative_bias(), true)
      .option("final_dropout", options.final_dropout(), 0.0)
      .option("checkpointing", options.checkpointing(), false);
}

std::shared_ptr<torch::nn::Module> EncoderImpl::final_norm_module() const {
  if (final_norm) return final_norm.ptr();
  return own_final_norm_.is_empty() ? nullptr : own_final_norm_.ptr();
}

at::Tensor EncoderImpl::finished(const at::Tensor& x) const {
  const auto normed = detail::apply_norm(kEncoder, final_norm, own_final_norm_, x);
  return detail::drop_out(normed, options.final_dropout(), is_training());
}

at::Tensor EncoderImpl::forward(const at::Tensor& x, const TransformerInputs& inputs) {
  const bool checkpointing = options.checkpointing() && is_training();
  HEED_CHECK(!checkpointing || !RoutingRecord::is_active(),
             "{}: checkpointing must be false while a RoutingRecord exists: blocks are computed "
             "again in the backward pass, after the losses",
             kEncoder);
  BlockInputs own(*this, &x, inputs);
  auto result = sharing(blocks).split_sequence(x);
  for (size_t i = 0; i < blocks->size(); ++i) {
    const auto block = blocks->ptr<TransformerBlockImpl>(i);
    result = checkpointing ? detail::forward_checkpointed(kEncoder, block, result, own.of(i))
                           : block->forward(result, own.of(i));
  }
  return finished(sharing(blocks).join_sequence(result));
}

at::Tensor EncoderImpl::forward_cached(const at::Tensor& x, std::vector<KVCache>& caches,
                                       at::IntArrayRef counts,
                                       const TransformerInputs& inputs) const {
  HEED_CHECK(caches.size() == blocks->size(), "{}: caches size ({}) must equal num_layers ({})",
             kEncoder, caches.size(), blocks->size());
  detail::check_no_dropout(kEncoder, "final_dropout", options.final_dropout(), is_training());
  BlockInputs own(*this, nullptr, inputs);
  const detail::UndoOnError undo(caches);
  auto result = x;
  for (size_t i = 0; i < blocks->size(); ++i) {
    result = block_of(blocks, i).forward_cached(result, caches[i], counts, own.of(i));
  }
  return finished(result);
}

at::Tensor EncoderImpl::forward_cached(const at::Tensor& x, PagedStep& step, int64_t first_layer,
                                       const TransformerInputs& inputs) const {
  const auto layers = step.options().layers(), count = cached_layers(blocks);
  HEED_CHECK(first_layer >= 0 && first_layer <= layers - count,
             "{}: first_layer ({}) must be at least 0 and leave {} ({}) of the cache's layers ({})",
             kEncoder, first_layer,
             count == options.num_layers() ? "num_layers" : "the blocks with self-attention", count,
             layers);
  detail::check_no_dropout(kEncoder, "final_dropout", options.final_dropout(), is_training());
  BlockInputs own(*this, nullptr, inputs);
  auto result = x;
  auto layer = first_layer;
  for (size_t i = 0; i < blocks->size(); ++i) {
    const auto& block = block_of(blocks, i);
    result = block.forward_cached(result, step, layer, own.of(i));
    if (block.options.self_attention()) ++layer;
  }
  return finished(result);
}

PagedKVCache EncoderImpl::make_paged_cache(int64_t pages,
                                           const PagedCacheOptions& cache_options) const {
  check_equal_heads(blocks);
  auto own = cache_options;
  own.layers(cache_options.layers().value_or(cached_layers(blocks)));
  return widest(blocks).make_paged_cache(pages, own);
}

std::tuple<at::Tensor, std::vector<AttentionWeights>> EncoderImpl::forward_with_weights(
    const at::Tensor& x, const TransformerInputs& inputs) const {
  BlockInputs own(*this, &x, inputs);
  auto result = sharing(blocks).split_sequence(x);
  std::vector<AttentionWeights> weights(blocks->size());
  for (size_t i = 0; i < blocks->size(); ++i) {
    std::tie(result, weights[i]) = block_of(blocks, i).forward_with_weights(result, own.of(i));
  }
  return {finished(sharing(blocks).join_sequence(result)), std::move(weights)};
}

std::vector<ProjectedMemory> EncoderImpl::project_memory(const at::Tensor& memory) const {
  const bool has_memory = have_cross_attention(blocks);
  return c10::fmap(*blocks, [&](const auto& module) {
    const auto& block = *module->template as<TransformerBlockImpl>();
    const bool reads_memory = block.cross_attention || !has_memory;  // or it refuses a memory
    return reads_memory ? block.project_memory(memory) : ProjectedMemory({}, {});
  });
}

std::vector<KVCache> EncoderImpl::make_caches(int64_t batch, int64_t capacity,
                                              const CacheOptions& cache_options) const {
  return c10::fmap(*blocks, [&](const auto& block) {
    return block->template as<TransformerBlockImpl>()->make_cache(batch, capacity, cache_options);
  });
}

}  // namespace heed

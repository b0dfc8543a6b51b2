#include <heed/transformer.h>

#include <ATen/TensorOperators.h>
#include <torch/nn/init.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "models/checkpoint.h"
#include "models/norm_options.h"
#include "modules/caches.h"
#include "modules/calls.h"
#include "modules/linear.h"
#include "modules/parameters.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kBlock = "TransformerBlock";
constexpr auto kEncoder = "Encoder";

// More than anyone has trained. Blocks are made one by one, and too many fill the memory.
constexpr int64_t kMostLayers = 1 << 20;

/// Cross-attention sees all of the memory, whose order its embeddings hold.
GroupQueryAttentionOptions without_positions(GroupQueryAttentionOptions options) {
  return options.causal(false).window(std::nullopt).rotary(std::nullopt).alibi(false);
}

/// x itself if the norm is empty.
at::Tensor normalized(const Norm& norm, const at::Tensor& x) {
  return norm ? norm.ptr()->forward(x) : x;
}

void check_memory(const TransformerInputs& inputs, bool cross_attention) {
  const bool is_given = inputs.memory() || !inputs.projected_memory().empty();
  HEED_CHECK(
      is_given == cross_attention, "{}: memory must be {}", kBlock,
      cross_attention ? "given: there is cross-attention" : "absent: there is no cross-attention");
  HEED_CHECK(!inputs.memory() || inputs.projected_memory().empty(),
             "{}: memory must be absent beside projected_memory", kBlock);
  HEED_CHECK(inputs.projected_memory().size() <= 1,
             "{}: projected_memory size ({}) must equal 1, the number of blocks", kBlock,
             inputs.projected_memory().size());
}

/// Before attention gives it another name. Other tensors than [B, L, E] are refused there.
void check_memory_mask(const at::Tensor& x, const TransformerInputs& inputs, int64_t heads,
                       int64_t sequence_parts) {
  if (!inputs.memory_mask()) return;
  HEED_CHECK(inputs.memory() || !inputs.projected_memory().empty(),
             "{}: memory_mask must be absent where there is no memory", kBlock);
  const auto has_rank = [](const at::Tensor& tensor, int64_t rank) {
    return tensor.defined() && !tensor.is_nested() && tensor.dim() == rank;
  };
  const bool is_projected = !inputs.memory();
  const auto& memory = is_projected ? inputs.projected_memory()[0].key : *inputs.memory();
  if (!has_rank(x, 3) || !has_rank(memory, is_projected ? 4 : 3)) return;
  detail::check_mask(
      kBlock, "memory_mask", *inputs.memory_mask(),
      {x, memory, x.size(0), heads, x.size(1) * sequence_parts, memory.size(is_projected ? 2 : 1)},
      /*takes_bias=*/false);
}

/// Leaves of `own`, a copy of a stack's inputs, what block i is given.
void narrow_to_block(size_t i, const TransformerInputs& inputs, TransformerInputs& own) {
  const auto& memories = inputs.projected_memory();
  if (!memories.empty()) own.projected_memory({memories[i]});
}

/// Calls `attend` with what its module takes for the memory: the projected one, or key and value.
template <typename Attend>
auto with_memory(const TransformerInputs& inputs, const Attend& attend) {
  const auto& memory = inputs.memory();
  return memory ? attend(*memory, *memory) : attend(inputs.projected_memory()[0]);
}

void check_projected_memory(const TransformerInputs& inputs, size_t num_layers) {
  const auto size = inputs.projected_memory().size();
  HEED_CHECK(size == 0 || size == num_layers,
             "{}: projected_memory size ({}) must equal num_layers ({})", kEncoder, size,
             num_layers);
}

struct NamedTensor {
  const char* name;
  at::Tensor* tensor;
};

/// All tensors of the inputs, to read or to replace.
std::vector<NamedTensor> tensors_of(TransformerInputs& inputs) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const char* name, std::optional<at::Tensor>& tensor) {
    if (tensor) tensors.push_back({name, &*tensor});
  };
  add("mask", inputs.mask());
  add("bias", inputs.bias());
  add("memory", inputs.memory());
  for (auto& memory : inputs.projected_memory()) {
    tensors.push_back({"projected_memory", &memory.key});
    tensors.push_back({"projected_memory", &memory.value});
  }
  add("memory_mask", inputs.memory_mask());
  return tensors;
}

/// The modes, training or not, of a module and all in it.
class Modes {
 public:
  explicit Modes(torch::nn::Module& module) : modules_(module.modules()) {
    for (const auto& each : modules_) training_.push_back(each->is_training());
  }
  /// Parents come first, and set their children's too.
  void restore() const {
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(training_[i]);
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> training_;
};

/// block->forward(x, inputs) in the modes that the block was in.
at::Tensor forward_in(const Modes& modes, TransformerBlockImpl& block, const at::Tensor& x,
                      const TransformerInputs& inputs) {
  const Modes present(block);
  modes.restore();
  const struct Restore {
    const Modes& modes;
    ~Restore() { modes.restore(); }
  } restore{present};
  return block.forward(x, inputs);
}

/// block->forward(x, inputs), computed again in the backward pass.
at::Tensor forward_checkpointed(const std::shared_ptr<TransformerBlockImpl>& block,
                                const at::Tensor& x, const TransformerInputs& inputs) {
  auto own = inputs;
  std::vector<at::Tensor> tensors = {x};
  std::vector<const char*> names = {"x"};
  for (const auto& [name, tensor] : tensors_of(own)) {
    tensors.push_back(*tensor);
    names.push_back(name);
  }
  // The block uses its own parameters. These are listed only so that a change of them is noticed;
  // those with a gradient are found.
  for (const auto& parameter : block->parameters()) {
    if (parameter.requires_grad()) continue;
    tensors.push_back(parameter);
    names.push_back("a parameter without gradient");
  }
  if (const auto& slopes = block->attention->alibi_slopes; slopes.defined()) {
    tensors.push_back(slopes);
    names.push_back("alibi_slopes");
  }
  const auto run = [block, own, modes = Modes(*block),
                    is_whole = WholeSequence::is_active()](const auto& tensors) {
    const WholeSequence as_before(is_whole);
    auto given = own;
    size_t next = 1;
    for (const auto& named : tensors_of(given)) *named.tensor = tensors[next++];
    return forward_in(modes, *block, tensors[0], given);
  };
  return detail::checkpoint_named(kEncoder, run, tensors, std::move(names));
}

TransformerBlockImpl& block_of(const torch::nn::ModuleList& blocks, size_t i) {
  return *blocks.ptr()->ptr<TransformerBlockImpl>(i);
}

const TransformerBlockOptions& first_of(const std::vector<TransformerBlockOptions>& blocks) {
  HEED_CHECK(!blocks.empty(), "EncoderOptions: blocks must not be empty");
  return blocks.front();
}

void check_blocks(const EncoderOptions& options) {
  const auto& blocks = options.blocks();
  detail::check_positive(kEncoder, "num_layers", options.num_layers());
  HEED_CHECK(options.num_layers() <= kMostLayers, "{}: num_layers ({}) must be at most {}",
             kEncoder, options.num_layers(), kMostLayers);
  if (blocks.empty()) return;
  HEED_CHECK(static_cast<int64_t>(blocks.size()) == options.num_layers(),
             "{}: blocks size ({}) must equal num_layers ({})", kEncoder, blocks.size(),
             options.num_layers());
  const auto& first = options.block();
  for (size_t i = 0; i < blocks.size(); ++i) {
    HEED_CHECK(blocks[i].attention().emb_dim() == first.attention().emb_dim(),
               "{}: blocks[{}] emb_dim ({}) must equal block emb_dim ({})", kEncoder, i,
               blocks[i].attention().emb_dim(), first.attention().emb_dim());
    HEED_CHECK(blocks[i].cross_attention() == first.cross_attention(),
               "{}: blocks[{}] cross_attention ({}) must equal block cross_attention ({})",
               kEncoder, i, blocks[i].cross_attention(), first.cross_attention());
  }
}

/// Gives the last block the rotary embedding of the first that has the same, so that they compute
/// the angles once.
void share_rotary(const torch::nn::ModuleList& blocks) {
  const auto last = blocks->size() - 1;
  auto& rotary = block_of(blocks, last).attention->rotary;
  if (!rotary) return;
  for (size_t i = 0; i < last; ++i) {
    const auto& earlier = block_of(blocks, i).attention->rotary;
    if (!earlier || !(earlier->options == rotary->options)) continue;
    rotary = earlier;
    return;
  }
}

/// The block whose cache fits all of them: the one with the widest window, or with none.
const TransformerBlockImpl& widest(const torch::nn::ModuleList& blocks) {
  const auto window = [](const TransformerBlockImpl& block) {
    return block.options.attention().window().value_or(std::numeric_limits<int64_t>::max());
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
    const auto& attention = *block.attention;
    return std::tuple(attention.options.group_num(), attention.fc_k->weight.size(0),
                      attention.fc_v->weight.size(0));
  };
  for (size_t i = 1; i < blocks->size(); ++i) {
    HEED_CHECK(sizes(block_of(blocks, i)) == sizes(block_of(blocks, 0)),
               "{}: blocks[{}] key/value heads must equal those of blocks[0] in number and size "
               "with a PagedKVCache",
               kEncoder, i);
  }
}

/// Checks all layers of the block but the attention, which checks its own dropout.
void check_no_dropout(const TransformerBlockImpl& block) {
  const auto check = [](const char* name, double dropout, const torch::nn::Module& module) {
    detail::check_no_dropout(kBlock, name, dropout, module.is_training());
  };
  const auto dropout = block.options.dropout();
  check("dropout", dropout, block);
  check("feed_forward_dropout", block.options.feed_forward_dropout().value_or(dropout), block);
  check("feed_forward dropout", block.feed_forward->options.dropout(), *block.feed_forward);
  if (const auto& cross = block.cross_attention) {
    check("cross_attention dropout", cross->options.dropout(), *cross);
  }
}

/// Sequences as the blocks take and return them; see ShardedLinearImpl.
/// @{
at::Tensor split_sequence(const torch::nn::ModuleList& blocks, const at::Tensor& x) {
  const auto* shard = detail::sharded(block_of(blocks, 0).attention->fc_q);
  return shard ? shard->split_sequence(x) : x;
}

at::Tensor join_sequence(const torch::nn::ModuleList& blocks, const at::Tensor& x) {
  const auto* shard = detail::sharded(block_of(blocks, 0).attention->fc_q);
  return shard ? shard->join_sequence(x) : x;
}
/// @}

}  // namespace

std::string_view to_string(NormPlacement placement) {
  switch (placement) {
    case NormPlacement::pre:
      return "pre";
    case NormPlacement::post:
      return "post";
    case NormPlacement::sandwich:
      return "sandwich";
    case NormPlacement::output:
      return "output";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown NormPlacement");
}

TransformerBlockImpl::TransformerBlockImpl(const TransformerBlockOptions& options)
    : options(options) {
  reset();
}

void TransformerBlockImpl::check_options() const {
  detail::check_probability(kBlock, "dropout", options.dropout());
  detail::check_probability(kBlock, "feed_forward_dropout", feed_forward_dropout());
  const auto width = options.attention().emb_dim();
  HEED_CHECK(options.feed_forward().emb_dim() == width,
             "{}: feed_forward emb_dim ({}) must equal attention emb_dim ({})", kBlock,
             options.feed_forward().emb_dim(), width);
  const auto placement = options.norm_placement();
  const bool pre = placement == NormPlacement::pre;
  HEED_CHECK(pre || options.attention_norm(),
             "{}: attention_norm must be true for norm_placement {}", kBlock, to_string(placement));
  HEED_CHECK(pre || !options.parallel(), "{}: parallel must be false for norm_placement {}", kBlock,
             to_string(placement));
  HEED_CHECK(!options.parallel() || !options.cross_attention(),
             "{}: parallel must be false with cross_attention", kBlock);
  HEED_CHECK(!options.shared_norm() || (options.parallel() && options.attention_norm()),
             "{}: shared_norm must be false without parallel or without attention_norm", kBlock);
}

void TransformerBlockImpl::reset() {
  check_options();
  const auto norm = [&](const char* name) {
    return register_module(name, Norm(detail::norm_options(options)));
  };
  const bool sandwich = options.norm_placement() == NormPlacement::sandwich;
  attention = register_module("attention", GroupQueryAttention(options.attention()));
  if (options.attention_norm()) attention_norm = norm("attention_norm");
  if (sandwich) attention_output_norm = norm("attention_output_norm");
  if (options.cross_attention()) {
    cross_attention = register_module("cross_attention",
                                      GroupQueryAttention(without_positions(options.attention())));
    cross_attention_norm = norm("cross_attention_norm");
    if (sandwich) cross_attention_output_norm = norm("cross_attention_output_norm");
  }
  feed_forward = register_module("feed_forward", FeedForward(options.feed_forward()));
  if (!options.shared_norm()) feed_forward_norm = norm("feed_forward_norm");
  if (sandwich) feed_forward_output_norm = norm("feed_forward_output_norm");
}

void TransformerBlockImpl::reset_parameters() {
  attention->reset_parameters();
  if (cross_attention) cross_attention->reset_parameters();
  feed_forward->reset_parameters();
  for (auto* norm : {&attention_norm, &attention_output_norm, &cross_attention_norm,
                     &cross_attention_output_norm, &feed_forward_norm, &feed_forward_output_norm}) {
    if (*norm) (*norm)->reset_parameters();
  }
}

void TransformerBlockImpl::pretty_print(std::ostream& stream) const {
  const TransformerBlockOptions defaults(options.attention());
  detail::ModulePrinter(stream, kBlock)
      .show("norm", to_string(options.norm()))
      .show("norm_placement", to_string(options.norm_placement()))
      .option("norm_eps", options.norm_eps(), defaults.norm_eps())
      .option("norm_bias", options.norm_bias(), defaults.norm_bias())
      .option("norm_unit_offset", options.norm_unit_offset(), false)
      .option("attention_norm", options.attention_norm(), true)
      .option("parallel", options.parallel(), false)
      .option("shared_norm", options.shared_norm(), false)
      .show("dropout", options.dropout())
      .option("feed_forward_dropout", options.feed_forward_dropout())
      .option("cross_attention", options.cross_attention(), false);
}

double TransformerBlockImpl::feed_forward_dropout() const {
  return options.feed_forward_dropout().value_or(options.dropout());
}

at::Tensor TransformerBlockImpl::dropped(const at::Tensor& output, double probability) const {
  const auto* shard = detail::sharded(attention->fc_q);
  const bool is_split = shard != nullptr && shard->sequence_parts() > 1;
  const detail::OwnRandomNumbers own(is_split ? shard : nullptr, output.device(),
                                     is_training() ? probability : 0.0);
  return detail::drop_out(output, probability, is_training());
}

template <typename Layer>
at::Tensor TransformerBlockImpl::residual(const at::Tensor& x, const Norm& norm,
                                          const Norm& output_norm, double dropout,
                                          const Layer& layer) const {
  switch (options.norm_placement()) {
    case NormPlacement::pre:
      return x + dropped(layer(normalized(norm, x)), dropout);
    case NormPlacement::post:
      return normalized(norm, x + dropped(layer(x), dropout));
    case NormPlacement::sandwich:
      return x + dropped(normalized(output_norm, layer(normalized(norm, x))), dropout);
    case NormPlacement::output:
      return x + dropped(normalized(norm, layer(x)), dropout);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown NormPlacement");
}

template <typename SelfAttend>
at::Tensor TransformerBlockImpl::run_parallel(const at::Tensor& x,
                                              const SelfAttend& self_attend) const {
  const auto input = normalized(attention_norm, x);
  const auto attended = x + dropped(self_attend(input), options.dropout());
  const auto other = options.shared_norm() ? input : normalized(feed_forward_norm, x);
  return attended + dropped(feed_forward.ptr()->forward(other), feed_forward_dropout());
}

template <typename SelfAttend, typename CrossAttend>
at::Tensor TransformerBlockImpl::run(const at::Tensor& x, const TransformerInputs& inputs,
                                     const SelfAttend& self_attend,
                                     const CrossAttend& cross_attend) const {
  check_memory(inputs, options.cross_attention());
  check_memory_mask(x, inputs, options.attention().head_num(),
                    detail::sequence_parts(attention->fc_q));
  if (options.parallel()) return run_parallel(x, self_attend);
  const auto dropout = options.dropout();
  auto result = residual(x, attention_norm, attention_output_norm, dropout, self_attend);
  if (cross_attention) {
    result =
        residual(result, cross_attention_norm, cross_attention_output_norm, dropout, cross_attend);
  }
  return residual(result, feed_forward_norm, feed_forward_output_norm, feed_forward_dropout(),
                  [&](const at::Tensor& input) { return feed_forward.ptr()->forward(input); });
}

at::Tensor TransformerBlockImpl::attend_to_memory(const at::Tensor& x,
                                                  const TransformerInputs& inputs) const {
  return with_memory(inputs, [&](const auto&... memory) {
    return cross_attention.ptr()->forward(x, memory..., inputs.memory_mask());
  });
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x, const TransformerInputs& inputs) {
  return run(
      x, inputs,
      [&](const at::Tensor& input) {
        return attention->forward(input, input, input, inputs.mask(), inputs.bias());
      },
      [&](const at::Tensor& input) { return attend_to_memory(input, inputs); });
}

std::tuple<at::Tensor, AttentionWeights> TransformerBlockImpl::forward_with_weights(
    const at::Tensor& x, const TransformerInputs& inputs) const {
  AttentionWeights weights;
  auto output = run(
      x, inputs,
      [&](const at::Tensor& input) {
        auto [output, own] =
            attention->forward_with_weights(input, input, input, inputs.mask(), inputs.bias());
        weights.self = own;
        return output;
      },
      [&](const at::Tensor& input) {
        auto [output, own] = with_memory(inputs, [&](const auto&... memory) {
          return cross_attention->forward_with_weights(input, memory..., inputs.memory_mask());
        });
        weights.cross = own;
        return output;
      });
  return {std::move(output), std::move(weights)};
}

void TransformerBlockImpl::check_causal() const {
  HEED_CHECK(options.attention().causal(), "{}: attention causal must be true with a cache",
             kBlock);
}

at::Tensor TransformerBlockImpl::forward_cached(const at::Tensor& x, PagedStep& step,
                                                int64_t layer) const {
  check_causal();
  check_no_dropout(*this);
  HEED_CHECK(!cross_attention,
             "{}: cross_attention must be absent with a PagedStep: a memory has one length for all "
             "sequences",
             kBlock);
  const WholeSequence whole;
  const auto attend = [&](const at::Tensor& input) {
    return attention->forward_cached(input, step, layer);
  };
  return run(x, {}, attend, [](const at::Tensor& input) { return input; });
}

at::Tensor TransformerBlockImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                                at::IntArrayRef counts,
                                                const TransformerInputs& inputs) const {
  check_causal();
  check_no_dropout(*this);
  HEED_CHECK(!inputs.mask(), "{}: mask must be absent with a cache", kBlock);
  HEED_CHECK(!inputs.bias(), "{}: bias must be absent with a cache", kBlock);
  const WholeSequence whole;
  const detail::UndoOnError undo(cache);
  return run(
      x, inputs,
      [&](const at::Tensor& input) { return attention->forward_cached(input, cache, counts); },
      [&](const at::Tensor& input) { return attend_to_memory(input, inputs); });
}

KVCache TransformerBlockImpl::make_cache(int64_t batch, int64_t capacity,
                                         const CacheOptions& cache_options) const {
  return attention->make_cache(batch, capacity, cache_options);
}

PagedKVCache TransformerBlockImpl::make_paged_cache(int64_t pages,
                                                    const PagedCacheOptions& cache_options) const {
  return attention->make_paged_cache(pages, cache_options);
}

ProjectedMemory TransformerBlockImpl::project_memory(const at::Tensor& memory) const {
  HEED_CHECK(options.cross_attention(), "{}: memory must be absent: there is no cross-attention",
             kBlock);
  return cross_attention->project_memory(memory, memory);
}

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
  if (options.final_norm().value_or(block.norm_placement() == NormPlacement::pre)) {
    final_norm = register_module("final_norm", Norm(detail::norm_options(block)));
  }
  if (!detail::UninitializedParameters::are_made()) reset_parameters();
}

std::shared_ptr<torch::nn::Module> EncoderImpl::clone(
    const std::optional<at::Device>& device) const {
  auto copy = torch::nn::Cloneable<EncoderImpl>::clone(device);
  const auto& copies = copy->as<EncoderImpl>()->blocks;
  // Rotary embeddings are not registered: each copied block has made one of its own.
  std::map<const RotaryEmbeddingImpl*, RotaryEmbedding> shared;
  for (size_t i = 0; i < blocks->size(); ++i) {
    const auto& rotary = block_of(blocks, i).attention->rotary;
    auto& own = block_of(copies, i).attention->rotary;
    if (rotary) own = shared.emplace(rotary.get(), own).first->second;
  }
  return copy;
}

void EncoderImpl::reset_parameters() {
  const auto residual_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(blocks->size()));
  for (size_t i = 0; i < blocks->size(); ++i) {
    auto& block = block_of(blocks, i);
    block.reset_parameters();
    detail::initialize_linears(block);
    const torch::NoGradGuard no_grad;
    block.attention->fc_o->weight.mul_(residual_scale);
    if (block.cross_attention) block.cross_attention->fc_o->weight.mul_(residual_scale);
    block.feed_forward->fc_out->weight.mul_(residual_scale);
  }
  if (final_norm) final_norm->reset_parameters();
}

void EncoderImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kEncoder)
      .show("num_layers", options.num_layers())
      .option("final_norm", options.final_norm())
      .option("checkpointing", options.checkpointing(), false);
}

at::Tensor EncoderImpl::forward(const at::Tensor& x, const TransformerInputs& inputs) {
  check_projected_memory(inputs, blocks->size());
  auto result = split_sequence(blocks, x);
  auto own = inputs;
  for (size_t i = 0; i < blocks->size(); ++i) {
    const auto block = blocks->ptr<TransformerBlockImpl>(i);
    narrow_to_block(i, inputs, own);
    const bool checkpointing = options.checkpointing() && is_training();
    result = checkpointing ? forward_checkpointed(block, result, own) : block->forward(result, own);
  }
  result = join_sequence(blocks, result);
  return final_norm ? final_norm->forward(result) : result;
}

at::Tensor EncoderImpl::forward_cached(const at::Tensor& x, std::vector<KVCache>& caches,
                                       at::IntArrayRef counts,
                                       const TransformerInputs& inputs) const {
  HEED_CHECK(caches.size() == blocks->size(), "{}: caches size ({}) must equal num_layers ({})",
             kEncoder, caches.size(), blocks->size());
  check_projected_memory(inputs, blocks->size());
  const detail::UndoOnError undo(caches);
  auto result = x;
  auto own = inputs;
  for (size_t i = 0; i < blocks->size(); ++i) {
    narrow_to_block(i, inputs, own);
    result = block_of(blocks, i).forward_cached(result, caches[i], counts, own);
  }
  return final_norm ? final_norm.ptr()->forward(result) : result;
}

at::Tensor EncoderImpl::forward_cached(const at::Tensor& x, PagedStep& step,
                                       int64_t first_layer) const {
  const auto layers = step.options().layers(), own = static_cast<int64_t>(blocks->size());
  HEED_CHECK(first_layer >= 0 && first_layer <= layers - own,
             "{}: first_layer ({}) must be at least 0 and leave num_layers ({}) of the cache's "
             "layers ({})",
             kEncoder, first_layer, own, layers);
  auto result = x;
  for (int64_t i = 0; i < own; ++i) {
    result = block_of(blocks, i).forward_cached(result, step, first_layer + i);
  }
  return final_norm ? final_norm.ptr()->forward(result) : result;
}

PagedKVCache EncoderImpl::make_paged_cache(int64_t pages,
                                           const PagedCacheOptions& cache_options) const {
  check_equal_heads(blocks);
  auto own = cache_options;
  own.layers(cache_options.layers().value_or(static_cast<int64_t>(blocks->size())));
  return widest(blocks).make_paged_cache(pages, own);
}

std::tuple<at::Tensor, std::vector<AttentionWeights>> EncoderImpl::forward_with_weights(
    const at::Tensor& x, const TransformerInputs& inputs) const {
  check_projected_memory(inputs, blocks->size());
  auto result = split_sequence(blocks, x);
  auto own = inputs;
  std::vector<AttentionWeights> weights(blocks->size());
  for (size_t i = 0; i < blocks->size(); ++i) {
    narrow_to_block(i, inputs, own);
    std::tie(result, weights[i]) = block_of(blocks, i).forward_with_weights(result, own);
  }
  result = join_sequence(blocks, result);
  return {final_norm ? final_norm.ptr()->forward(result) : result, std::move(weights)};
}

std::vector<ProjectedMemory> EncoderImpl::project_memory(const at::Tensor& memory) const {
  std::vector<ProjectedMemory> projected;
  projected.reserve(blocks->size());
  for (size_t i = 0; i < blocks->size(); ++i) {
    projected.push_back(block_of(blocks, i).project_memory(memory));
  }
  return projected;
}

std::vector<KVCache> EncoderImpl::make_caches(int64_t batch, int64_t capacity,
                                              const CacheOptions& cache_options) const {
  std::vector<KVCache> caches;
  caches.reserve(blocks->size());
  for (size_t i = 0; i < blocks->size(); ++i) {
    caches.push_back(block_of(blocks, i).make_cache(batch, capacity, cache_options));
  }
  return caches;
}

}  // namespace heed

// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/layout.h"

#include "core/random_state.h"

// How a problem is split so that threads do about the same work:
//
//   blocks     at most 256 rows of queries and 512 keys; all keys if weights are returned
//   forward:   make blocks of queries smaller, down to 16 rows, until threads share them evenly
//              tasks = blocks, or ranges of blocks that get shorter towards the end
//   backward:  halve blocks of keys, down to 32, until threads share them evenly
//              tasks = blocks of keys
//   threads    fewer than asked for if there is little work, or if few tasks differ in cost
//
//   causal, blocks of queries:   #            cost rises evenly from the first query to the last;
//                                # #          of few tasks, threads take the costly ones first
//                                # # #
//
// docs/kernels.md, Block ("Work is split evenly").

namespace heed::detail {

namespace {

// A tile of 256 x 512 float32 scores takes half of an L2 cache of 1 MiB, and its keys and values
// of 64 columns take a quarter. With wide tiles, each row takes fewer steps of the softmax.
BlockSizes block_sizes = {256, 512};

constexpr int64_t kFewestRows = 16;  // for fewer, packing keys takes longer than multiplying them

/// An estimate of the work of the busiest thread, divided by the mean of all threads. The costs of
/// tasks are equal, or, with `fall`, fall evenly from the first task to the last.
double unevenness(int64_t tasks, int64_t threads, bool fall) {
  const auto mean = static_cast<double>(tasks) / static_cast<double>(threads);
  if (!fall) return static_cast<double>(ceil_div(tasks, threads)) / mean;
  if (mean < 2) return 2 / mean;  // the first task costs twice the mean
  return tasks % threads == 0 ? 1 : 1 + 0.5 / mean;
}

constexpr double kEven = 1.05;  // unevenness that needs no smaller blocks

/// Splits `count` things, and each of `others` in the same way, into equal blocks, and returns the
/// size of a block: the largest with which threads share the blocks evenly. It is at most `most`,
/// and at least `fewest` unless `count` is less.
int64_t block_size(int64_t count, int64_t most, int64_t fewest, int64_t others, int64_t threads,
                   bool fall) {
  auto blocks = ceil_div(count, most);
  auto best = unevenness(blocks * others, threads, fall);
  for (auto more = blocks + 1; best > kEven && more <= count / fewest; ++more) {
    const auto uneven = unevenness(more * others, threads, fall);
    if (uneven >= best) continue;
    best = uneven;
    blocks = more;
  }
  return ceil_div(count, blocks);
}

/// The cost of the first query divided by that of the last, if costs rise evenly from the first to
/// the last; 1 if they do not rise.
double least_cost(const Problem& problem) {
  const auto keys_of = [&](int64_t query) {
    const auto [first, last] = problem.visible_keys(query);
    return static_cast<double>(std::max<int64_t>(0, last - first));
  };
  const auto most = keys_of(problem.query_length() - 1);
  if (most == 0) return 1;
  return std::clamp(2 * keys_of(problem.query_length() / 2) / most - 1, 0.0, 1.0);
}

bool costs_fall(const Problem& problem) { return least_cost(problem) < 0.5; }

/// Where the rows of a bias begin in memory.
struct BiasRows {
  BiasRows(const Problem& problem, int64_t batch) {
    const auto& bias = problem.bias;
    if (!bias.defined()) return;
    const auto item = bias.element_size();
    const auto stride = [&](int64_t dim) {
      return bias.size(dim) == 1 ? 0 : bias.stride(dim) * item;
    };
    data = static_cast<const char*>(bias.const_data_ptr()) +
           problem.score_batch(bias, batch) * bias.stride(0) * item;
    head_stride = stride(1);
    query_stride = stride(2);
  }
  const void* at(int64_t head, int64_t query) const {
    return data == nullptr ? nullptr : data + head * head_stride + query * query_stride;
  }
  const char* data = nullptr;
  int64_t head_stride = 0, query_stride = 0;  // in bytes
};

}  // namespace

ScopedBlockSizes::ScopedBlockSizes(BlockSizes sizes) : previous_(block_sizes) {
  TORCH_INTERNAL_ASSERT(sizes.queries >= 1 && sizes.queries <= kCellsOfBits * kStripRows &&
                        sizes.keys >= 1 && sizes.keys % kCellKeys == 0 &&
                        sizes.keys + 2 * kColumnMultiple <= kMaxTileWidth);
  block_sizes = sizes;
}

ScopedBlockSizes::~ScopedBlockSizes() { block_sizes = previous_; }

BlockLayout::BlockLayout(const Problem& problem, LayoutUse use, int64_t threads)
    : problem_(problem), shown_keys_(problem), relative_(problem), use_(use) {
  const auto columns = problem.head_dim() + problem.value_head_dim();
  const auto products = use == LayoutUse::backward ? 2 * columns + problem.head_dim() : columns;
  threads = useful_threads(multiply_adds(problem, products), threads);
  block_keys_ = problem.key_length();
  auto most_rows = block_sizes.queries;
  if (use == LayoutUse::whole_rows) {
    constexpr int64_t kFewestOfWholeRows = 32;
    const auto tile = block_sizes.queries * block_sizes.keys;
    most_rows = std::clamp(tile / block_keys_, std::min(kFewestOfWholeRows, most_rows), most_rows);
  } else {
    block_keys_ = std::min(block_keys_, block_sizes.keys);
  }
  split_queries(most_rows, use == LayoutUse::backward ? 1 : threads);
  // The sums of DistanceGradients follow the tasks and their order, which must then not depend on
  // the number of threads.
  constexpr int64_t kThreadsOfSums = 4;
  const bool sums_distances = problem.relative_bias.defined() || problem.alibi_slopes.defined();
  const bool in_fixed_order = use == LayoutUse::backward && sums_distances;
  const auto split_for = in_fixed_order ? kThreadsOfSums : threads;
  if (use == LayoutUse::backward) split_keys(split_for);
  few_blocks_ = task_blocks() < 8 * split_for;
  threads_ = busy_threads(threads);
  groups_at_once_ = in_fixed_order ? kThreadsOfSums : threads_;
  if (use != LayoutUse::backward) make_query_tasks();
  if (problem.alibi_slopes.defined()) {
    alibi_slopes_ = problem.alibi_slopes.to(at::kDouble).contiguous();
  }
}

void BlockLayout::split_queries(int64_t most_rows, int64_t threads) {
  const auto length = problem_.query_length();
  const auto whole_heads = std::min(most_rows / length, heads_per_group());
  if (whole_heads > 1) {
    block_queries_ = length;
    block_heads_ = block_size(heads_per_group(), whole_heads, ceil_div(kFewestRows, length),
                              problem_.batch() * problem_.groups(), threads, /*fall=*/false);
    blocks_per_group_ = ceil_div(heads_per_group(), block_heads_);
  } else {
    block_queries_ = block_size(length, most_rows, kFewestRows, problem_.batch() * problem_.heads(),
                                threads, costs_fall(problem_));
    block_heads_ = 1;
    blocks_per_group_ = heads_per_group() * ceil_div(length, block_queries_);
  }
}

void BlockLayout::split_keys(int64_t threads) {
  constexpr double kWorthSmallerTiles = 0.9;
  constexpr int64_t kFewestBlocks = 4;  // with fewer, each would often wait for the one before
  const auto half = block_sizes.keys / 2;
  if (key_blocks() < kFewestBlocks && half % kQuerySumKeys == 0) {
    block_keys_ = std::min(block_keys_, half);
  }
  const auto fall = costs_fall(problem_);
  const auto uneven = [&](int64_t size) {
    const auto blocks = ceil_div(problem_.key_length(), size);
    return unevenness(problem_.batch() * problem_.groups() * blocks, threads, fall);
  };
  auto best = uneven(block_keys_);
  for (auto size = half; best > kEven && size % kQuerySumKeys == 0 && size > 0; size /= 2) {
    if (size >= block_keys_ || uneven(size) > kWorthSmallerTiles * best) continue;
    best = uneven(size);
    block_keys_ = size;
  }
}

int64_t BlockLayout::busy_threads(int64_t threads) const {
  threads = std::min(threads, task_blocks());
  const auto in_order = use_ == LayoutUse::backward
                            ? key_blocks()
                            : ceil_div(problem_.query_length(), block_queries_);
  const auto least = std::max(least_cost(problem_), 1 / static_cast<double>(in_order));
  if (least >= 0.5 || block_heads_ > 1 || hides() || problem_.padded()) return threads;
  // While one thread computes the first task, another computes two of the last ones.
  const auto busy = static_cast<double>(task_blocks()) / (2 * (1 - least));
  return std::min(threads, static_cast<int64_t>(busy) + 1);
}

int64_t BlockLayout::task_blocks() const {
  return use_ == LayoutUse::backward ? problem_.batch() * problem_.groups() * key_blocks()
                                     : blocks();
}

void BlockLayout::make_query_tasks() {
  costly_first_ = few_blocks_ && block_heads_ == 1 && costs_fall(problem_);
  const bool in_order = !costly_first_ || problem_.batch() * problem_.groups() == 1;
  keeps_keys_ =
      blocks_per_group_ > 1 && in_order && !problem_.is_quantized() && uses_of_keys() >= 2;
  const auto small_blocks = blocks_of_small_task();
  first_blocks_.reserve(static_cast<size_t>(blocks() + 1));
  for (int64_t n = 0; n < blocks();) {
    first_blocks_.push_back(n);
    const auto left_of_group = blocks_per_group_ - n % blocks_per_group_;
    const auto half_a_mean = (blocks() - n) / (2 * threads_);
    const bool in_group = keeps_keys_ && !costly_first_;
    n += std::clamp<int64_t>(half_a_mean, 1, in_group ? left_of_group : small_blocks);
  }
  first_blocks_.push_back(blocks());
}

/// Threads wait for each other when they take a task, about as long as a block of 32 queries and
/// keys takes. So a task has several blocks that are small.
int64_t BlockLayout::blocks_of_small_task() const {
  constexpr double kMultiplyAdds = 1 << 20, kMostBlocks = 16;
  const auto columns = problem_.head_dim() + problem_.value_head_dim();
  const auto of_block = multiply_adds(problem_, columns) / static_cast<double>(blocks());
  return static_cast<int64_t>(
      std::clamp(kMultiplyAdds / std::max(of_block, 1.0), 1.0, kMostBlocks));
}

double BlockLayout::uses_of_keys() const {
  int64_t uses = 0;
  for (int64_t batch = 0; batch < problem_.batch(); ++batch) {
    const auto first = batch * problem_.groups() * blocks_per_group_;
    for (auto n = first; n < first + blocks_per_group_; ++n) {
      for (int64_t key = 0; key < key_blocks(); ++key) {
        const auto seen = seen_of(block(n), key_block(key));
        if (!seen.empty()) uses += seen.last - seen.first;
      }
    }
  }
  return static_cast<double>(uses) / static_cast<double>(problem_.batch() * problem_.key_length());
}

int64_t BlockLayout::tasks() const {
  return use_ == LayoutUse::backward ? task_blocks()
                                     : static_cast<int64_t>(first_blocks_.size()) - 1;
}

RowBlock BlockLayout::query_block(int64_t n) const {
  // The last queries come first, because they see the most keys.
  if (!costly_first_) return block(blocks() - 1 - n);
  const auto blocks_per_head = ceil_div(problem_.query_length(), block_queries_);
  const auto heads = blocks() / blocks_per_head;
  return block((heads - 1 - n % heads) * blocks_per_head + blocks_per_head - 1 - n / heads);
}

BlockLayout::KeyTask BlockLayout::key_task(int64_t n) const {
  // The first keys come first, because the most queries see them.
  const auto groups = problem_.batch() * problem_.groups();
  const auto most = few_blocks_ ? groups : shown_keys_.mask_varies() ? groups_at_once_ : 1;
  const auto first = n / (most * key_blocks()) * most;
  const auto together = std::min(most, groups - first);
  n -= first * key_blocks();
  const auto group = first + n % together;
  return {group / problem_.groups(), group % problem_.groups(), n / together};
}

RowBlock BlockLayout::block(int64_t n) const {
  const auto batch = n / blocks_per_group_ / problem_.groups();
  const auto group = n / blocks_per_group_ % problem_.groups();
  n %= blocks_per_group_;
  const auto length = problem_.query_length();
  const auto first_of_group = group * heads_per_group();
  if (block_heads_ > 1) {
    const auto head = n * block_heads_;
    return {batch, group, first_of_group + head, std::min(block_heads_, heads_per_group() - head),
            0,     length};
  }
  const auto blocks_per_head = ceil_div(length, block_queries_);
  const auto first = n % blocks_per_head * block_queries_;
  return {batch, group, first_of_group + n / blocks_per_head,
          1,     first, std::min(block_queries_, length - first)};
}

int64_t BlockLayout::first_row(const RowBlock& block) const {
  return (block.batch * problem_.heads() + block.first_head) * problem_.query_length() +
         block.first_query;
}

KeyRange BlockLayout::keys(const RowBlock& block) const {
  const auto [first, last] =
      problem_.visible_keys(block.batch, block.first_query, block.first_query + block.queries);
  return {first / kCellKeys * kCellKeys, last};
}

KeyRange BlockLayout::seen_of(const RowBlock& block, KeyRange keys) const {
  keys = both(keys, this->keys(block));
  if (keys.empty() || !hides()) return keys;
  const KeyRange queries{block.first_query, block.first_query + block.queries};
  const auto end = ceil_div(keys.last, kCellKeys);
  KeyRange seen{end, 0};  // in cells
  for (auto cell = keys.first / kCellKeys; cell < end; cell += kCellsOfBits) {
    uint64_t bits = 0;
    for (auto head = block.first_head; head < block.first_head + block.heads; ++head) {
      bits |=
          shown_keys_.may_see(block.batch, head, queries, cell, std::min(end - cell, kCellsOfBits));
    }
    for (int64_t n = 0; bits >> n != 0; ++n) {
      if ((bits >> n & 1U) == 0) continue;
      seen.first = std::min(seen.first, cell + n);
      seen.last = cell + n + 1;
      if (n == kCellsOfBits - 1) break;
    }
  }
  return {seen.first * kCellKeys, std::min(seen.last * kCellKeys, keys.last)};
}

void BlockLayout::describe_rows(const RowBlock& block, QueryRow* rows) const {
  const auto b = block.batch;
  const BiasRows bias(problem_, b);
  const auto* documents = shown_keys_.documents(b);
  const auto* slopes = row_of_batch<double>(alibi_slopes_, b);
  const auto place = problem_.place();
  const auto query_count = problem_.query_count(b), key_count = problem_.key_count(b);
  const auto position_of_first = problem_.position(b, 0);
  for (int64_t r = 0; r < block.rows(); ++r) {
    const auto head = block.first_head + r / block.queries;
    const auto query = block.first_query + r % block.queries;
    auto& row = rows[r];
    row.position = position_of_first + query;
    const auto range =
        query < query_count ? problem_.keys_near(row.position, key_count) : KeyRange{0, 0};
    row.first_key = range.first;
    row.last_key = range.last;
    row.mask = shown_keys_.mask(b, head, query);
    row.mask_key = 0;
    row.global = shown_keys_.global(b, query);
    if (row.global != nullptr) {
      const auto window = problem_.window_at(row.position, key_count);
      row.window_first = window.first;
      row.window_last = window.last;
    }
    row.key_documents = shown_keys_.key_documents(b);
    row.document = documents == nullptr ? 0 : documents[query];
    row.bias = bias.at(head, query);
    row.head = static_cast<uint32_t>(b * place.heads + place.first_head + head);
    row.index = static_cast<uint32_t>(place.first_query + query);
    row.alibi_slope = slopes == nullptr ? 0.0 : slopes[head];
    relative_.describe(b, head, query, row);
    row.relative_sums = row.slope_sum = nullptr;
  }
}

ScoreFormat BlockLayout::score_format(uint64_t dropout_key) const {
  ScoreFormat format{};
  if (problem_.bias.defined()) {
    format.bias_stride = problem_.bias.stride(3);
    format.bias_type = element_type(problem_.bias);
  }
  format.changes_scores = problem_.softcap > 0 || problem_.alibi_slopes.defined() ||
                          problem_.bias.defined() || relative_.defined();
  if (relative_.defined()) format.relative_reach = relative_.reach();
  format.softcap = problem_.softcap;
  format.through_softcap = true;
  format.dropout.key = dropout_key;
  format.dropout.first_key = problem_.place().first_key;
  format.dropout.threshold = dropout_threshold(problem_.dropout);
  return format;
}

double multiply_adds(const Problem& problem, int64_t head_dim) {
  const auto length = problem.query_length();
  const auto middle = problem.visible_keys(length / 2);
  return static_cast<double>(problem.batch() * problem.heads() * length) *
         static_cast<double>((middle.last - middle.first + 1) * head_dim);
}

}  // namespace heed::detail

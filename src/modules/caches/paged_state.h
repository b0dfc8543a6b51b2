// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/paged_kv_cache.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/to_device.h"

namespace heed {

/// The pages of a PagedKVCache, and which of them its sequences have.
struct PagedKVCache::State {
  /// A layer's views of the pools.
  struct Layer {
    std::vector<at::Tensor> pools;        // [P, G, page, ..]
    at::Tensor key_scales, value_scales;  // [P, G, page], or undefined
  };

  /// A sequence, whose pages hold the keys [evicted * page_size, length). After `truncate` there
  /// may be no pages, if the next token sees none of the keys.
  struct Sequence {
    std::vector<int64_t> pages;
    int64_t evicted = 0;  // the number of pages that were removed before these
    int64_t length = 0;
    int64_t appended = 0;  // how many keys the last append added
    // With LongRopeScaling, the greatest length for which the keys were rotated.
    int64_t rotated_for = 0;
  };

  /// The changes to a sequence's pages when tokens are appended, in this order.
  struct Extension {
    int64_t evicted = 0;       // pages removed from the beginning
    bool copies_last = false;  // other sequences use the last page too
    int64_t fresh = 0;         // pages added at the end
  };

  explicit State(const PagedKVCacheOptions& given);

  const Sequence& sequence(const char* function, int64_t name) const {
    const auto found = sequences.find(name);
    HEED_CHECK(found != sequences.end(),
               "{}: sequence ({}) must be one that add or fork returned, and not removed", function,
               name);
    return found->second;
  }
  Sequence& sequence(const char* function, int64_t name) {
    return const_cast<Sequence&>(std::as_const(*this).sequence(function, name));
  }

  void release(int64_t page) {
    if (--uses[static_cast<size_t>(page)] == 0) free.push_back(page);
  }
  int64_t take() {
    const auto page = free.back();
    free.pop_back();
    uses[static_cast<size_t>(page)] = 1;
    return page;
  }

  /// Copies that are still to be made: (destination, source).
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

  struct Plan {
    std::vector<Extension> extensions;  // one for each sequence
    std::vector<int64_t> given_up;      // pages, once for each sequence that gives them up
    std::vector<int64_t> freed;         // given-up pages that no sequence uses any more
    int64_t needed = 0;                 // free pages that are needed
  };
  Plan plan(const char* function, at::IntArrayRef names, at::IntArrayRef counts) const;
  Growth grow(const Plan& plan, at::IntArrayRef names, at::IntArrayRef counts) const;
  /// Makes a growth part of the cache. Its copies must have been made. Allocates no memory.
  void commit(Growth growth) noexcept;
  /// Adds to `copies` that the page `from` is copied to the page `to`, in all layers.
  void copy_page(Copies& copies, int64_t to, int64_t from) const {
    for (const auto& pool : pools) copies.emplace_back(pool.select(1, to), pool.select(1, from));
  }

  /// The pages and slots of tokens.
  struct Places {
    std::vector<int64_t> pages, slots;
  };
  /// Adds to `places` where a layer has a position. The pages of all layers are numbered one layer
  /// after the other.
  void add_place(Places& places, const Sequence& own, int64_t position, int64_t layer = 0) const {
    const auto size = options.page_size();
    const auto page = own.pages[static_cast<size_t>(position / size - own.evicted)];
    places.pages.push_back(layer * options.pages() + page);
    places.slots.push_back(position % size);
  }
  /// Copies pages and slots to the cache's device: int64.
  std::pair<at::Tensor, at::Tensor> on_device(const Places& places) const {
    return {detail::to_device(places.pages, options.device()),
            detail::to_device(places.slots, options.device())};
  }

  PagedKVCacheOptions options;
  // Keys [layers, P, G, page, D], values [.., Dv] and, if quantized, their scales [.., 1].
  std::vector<at::Tensor> pools;
  std::vector<Layer> layers;
  std::vector<int64_t> free;  // pages; the last one is taken next
  std::vector<int64_t> uses;  // [P]: how many sequences use a page
  std::unordered_map<int64_t, Sequence> sequences;
  int64_t next_name = 0;
  int64_t change = 0;  // counts the changes of sequences
};

/// The result of an append that `commit` has yet to make part of the cache. There are enough free
/// pages for it.
struct PagedKVCache::Growth {
  std::vector<int64_t> names;
  std::vector<State::Sequence> sequences;
  std::vector<int64_t> given_up;  // as in Plan
  std::vector<int64_t> taken;     // pages
  std::vector<int64_t> freed;     // freed pages that are not taken again
  size_t from_free = 0;           // how many pages are taken from the end of `free`
  State::Copies copies;           // copies of pages that other sequences use too
};

}  // namespace heed

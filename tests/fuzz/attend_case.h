// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace heed::fuzz {

/// The functions and modules that are called.
enum Target : int64_t {
  kAttend,
  kAttendWithWeights,
  kAttendVarlen,
  kMultiHead,
  kGroupQuery,
  kCached,  // GroupQueryAttention with a KVCache
  kMaskBuilder,
  kFar,          // attend, keys or queries by the million
  kDerivative,   // second derivatives and tangents of attend
  kTraining,     // Encoder, with and without checkpointing
  kKVCache,      // what a KVCache does beside being appended to
  kFile,         // save_weights and load_weights
  kPaged,        // attend_paged
  kPagedCache,   // a PagedKVCache, and what its steps attend to
  kRotary,       // RotaryEmbedding about the length that it was trained for
  kRotaryCache,  // caches of modules with such an embedding
  kLoss,         // linear_cross_entropy
  kPacked,       // pack_weights, and files of packed weights
  kTargets,
};

/// The argument that `Case::defect` spoils.
enum Victim : int64_t {
  kQuery,
  kKey,
  kValue,
  kMask,
  kBias,
  kSlopes,
  kSinks,
  kOffsets,
  kRelative,
  kVictims,
};

enum Defect : int64_t {
  kNoDefect,
  kUndefined,
  kMissingDim,
  kExtraDim,
  kSparse,
  kMeta,
  kLargerDim,  // of dim 0; kLargerDim + n: of dim n
  kDefects = kLargerDim + 4,
};

/// A call in integers. Sizes have the letters of attend.h; what is neither a size nor an enumerator
/// above is a switch or an index into a table of attend_call.cpp, whose first entry is the
/// plainest. The defaults are the simplest call, toward which a failing case shrinks.
struct Case {
  int64_t target = kAttend;
  int64_t seed = 0;  // of values
  int64_t B = 1, H = 1, G = 1, L = 1, S = 1, D = 1, Dv = 1;
  int64_t dtype = 0, key_dtype = 0, value_dtype = 0;  // the latter two: steps from query's
  int64_t query_layout = 0, key_layout = 0, value_layout = 0, mask_layout = 0, bias_layout = 0;
  int64_t mask = 0, mask_dtype = 0, mask_fill = 0;
  int64_t by_rule = 0;  // whether attend gets the mask as a BlockMask
  int64_t bias = 0, bias_dtype = 0, bias_fill = 0;
  int64_t documents = 0;  // how ids are drawn
  int64_t poison = 0;     // what stands where nobody may look
  int64_t causal = 0, window = 0, scale = 0, dropout = 0, softcap = 0, alibi = 0, sinks = 0;
  int64_t victim = kQuery, defect = kNoDefect;
  int64_t grad = 0;       // one bit a Victim: what requires grad
  int64_t inference = 0;  // 1: without grad mode; 2: in InferenceMode; 3: with tensors made there
  int64_t path = 0, capability = 0, small_tiles = 0;
  int64_t ragged = 0;  // sequences of a batch differ in length
  // Modules
  int64_t E = 0, key_dim = 0, value_dim = 0;  // 0: as the heads want it, or not given
  int64_t head_dim = 0, rotary = 0, qk_norm = 0, no_input_bias = 0, no_output_bias = 0;
  int64_t training = 0, cross = 0, weights = 0;
  int64_t chunk = 0, capacity = 0, cache_window = 0;  // 0: all at once, enough, none
  int64_t builder = 0;                                // which one, for kMaskBuilder
  int64_t mean = 0;                                   // of the values
  int64_t slopes_fill = 0, sinks_fill = 0;            // extremes in every second head
  int64_t device = 0;                                 // 1: meta
  int64_t far = 0;                                    // how many keys, for kFar
  int64_t steps = 0;                                  // of a cache; blocks of an Encoder
  int64_t place = 0;                                  // what stands where a file is written
  // Which keys a query reaches, and biases by distance
  int64_t left = 0, right = 0, top_left = 0;
  int64_t global = 0;                   // 1: of all batches; 2: of each; above: mistakes
  int64_t lengths = 0;                  // 1: of queries; 2: of keys; 3: of both; above: mistakes
  int64_t mask_batch = 0, batches = 0;  // how many a mask or bias has
  int64_t alibi_rows = 0;               // 1: slopes for each batch
  int64_t relative = 0, relative_dtype = 0, relative_fill = 0;
  int64_t relative_positions = 0;  // 1: of all batches; 2: of each; above: mistakes
  int64_t short_offsets = 0;       // 1: of 32 bits
  int64_t lse = 0;                 // 1: it is asked for
  // Training
  int64_t change = 0;  // which modes are switched between forward and backward
  int64_t edit = 0;    // which tensor is changed in place there
  int64_t hooks = 0;   // 1: on some leaves; 2: on all
  int64_t frozen = 0;  // 1: some parameters; 2: those of a block; 3: all
  int64_t twice = 0;   // what stands in two places
  int64_t asked = 0;   // gradients of some leaves are asked for, instead of accumulated
  int64_t norm = 0;    // a NormPlacement
  // Files
  int64_t names = 0;   // how many are drawn; 0: plain ones
  int64_t mapped = 0;  // the file's names are those of a NameMap
  // Rotary embeddings
  int64_t scaling = 0, trained = 0;  // which one, and for which length
  // Pages
  int64_t page = 0;    // keys of each, in steps of 16
  int64_t shared = 0;  // 1: all begin with the pages of the one before them; 2: with some of these
  int64_t draft = 0;   // 1: each token follows the one before it; 2: any
  int64_t int8 = 0;
};

/// The fields that are not as in Case{}: "target=2 L=7".
std::string describe(const Case& c);

/// The inverse. Throws std::invalid_argument.
Case parse(const std::string& text);

/// Most are right; some have one mistake, a few have more.
Case random_case(uint64_t seed);

/// Moves field after field towards its simplest value, as long as the case still `fails`.
Case shrink(Case c, const std::function<bool(const Case&)>& fails);

}  // namespace heed::fuzz

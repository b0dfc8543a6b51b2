// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/name_maps.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weights/shards.h"

namespace heed::detail {

/// Two tensors of a file that must be equal.
struct Tied {
  std::string entry;  // of the name map, for errors
  std::string name, original;
  bool is_head = false;  // of a Decoder, which may have one of its own
};

/// The result of `translate` for a file; all its maps are by names in the module. Undefined
/// tensors stand for those that heed cannot hold: they are renamed, and neither packed nor split.
struct Translation {
  NamedTensors tensors;                                     // a packed one is on the meta device
  std::map<std::string, std::vector<std::string>> origins;  // names in the file
  std::map<std::string, std::vector<at::Tensor>> packed;    // parts, concatenated by rows
  std::vector<Tied> tied;
};

/// The names in a module of the tensors of which the file's tensor `theirs` is, or has, a part,
/// whatever the two hold; of a stack, those in the first module of the list. None if the map drops
/// it.
std::vector<std::string> translated_name(const NameMap& map, const std::string& theirs);

/// Describes tied tensors of the file `theirs` that are not equal, in the rows or columns that
/// `shards` name, with `advice` on the head of a Decoder; empty if all are equal.
std::string tied_unequally(const Translation& translation, const NamedTensors& theirs,
                           const TensorShards& shards, const char* advice);

/// Throws c10::ValueError unless tied tensors are equal.
void check_tied(const Translation& translation, const NamedTensors& theirs,
                const TensorShards& shards);

/// Splits rows that hold, head by head, the rows of `count` parts: returns for each part one
/// tensor of each head. Empty if the number of rows does not fit.
std::vector<std::vector<at::Tensor>> head_parts(const at::Tensor& whole, int64_t heads,
                                                int64_t count);

/// How one tensor of a file is made of tensors of a module: concatenated by rows, or head by head
/// if there are `heads`, then transposed or without its first `leading` dimensions, of size 1.
/// If tensors of so many modules of a list are `stacked`, they lie as `layout` says.
struct Composition {
  std::vector<std::string> ours;
  bool transposed;
  at::Tensor shape;  // on the meta device
  int64_t heads = 0;
  int64_t stacked = 0;
  StackLayout layout = {};
  int64_t leading = 0;
};

/// The tensor that a composition makes. `tensor_of` returns a tensor of the module.
at::Tensor make(const Composition& composition,
                const std::function<at::Tensor(const std::string&)>& tensor_of);

/// Transposes a matrix, as GPT-2's Conv1D stores it; returns a bias as it is.
inline at::Tensor transposed(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 2 ? tensor.t() : tensor;
}

/// Puts so many dimensions of size 1 before a tensor's own.
inline at::Tensor with_leading(at::Tensor tensor, int64_t dims) {
  for (int64_t i = 0; i < dims && tensor.defined(); ++i) tensor = tensor.unsqueeze(0);
  return tensor;
}

/// Takes so many dimensions of size 1 away from before a tensor's others.
inline at::Tensor without_leading(at::Tensor tensor, int64_t dims) {
  for (int64_t i = 0; i < dims; ++i) tensor = tensor.squeeze(0);
  return tensor;
}

}  // namespace heed::detail

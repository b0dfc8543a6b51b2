// SPDX-License-Identifier: BSD-3-Clause
#include "weights/copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "core/error.h"
#include "weights/formats/equal_values.h"

namespace heed::detail {

namespace {

/// Where a tensor of the module is copied from: the rows of one tensor of the file, or of several
/// one after the other, from row `first` on.
struct Source {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
};

Source source_of(const Translation& translation, const HeldTensor& to) {
  const auto packed = translation.packed.find(to.name);
  if (packed == translation.packed.end()) {
    const auto& whole = translation.tensors.at(to.name);
    return {{with_rows(to.shard ? part_of(whole, *to.shard) : whole)}};
  }
  Source source{packed->second};
  if (to.shard && to.shard->dim == 0) {
    source.first = to.shard->first;
  } else if (to.shard) {
    for (auto& part : source.parts) part = part_of(part, *to.shard);
  }
  return source;
}

/// Adds copies of a source's rows, from `first` on, to all rows of `to`.
void add_rows(ValueCopies& copies, const Source& source, int64_t first, const at::Tensor& to) {
  int64_t begin = -(source.first + first);  // the row of `to` at which the part begins
  for (const auto& part : source.parts) {
    const auto end = begin + part.size(0);
    const auto from = std::max<int64_t>(begin, 0), until = std::min(end, to.size(0));
    if (from < until) {
      copies.add(part.narrow(0, from - begin, until - from), to.narrow(0, from, until - from));
    }
    begin = end;
  }
}

/// Rows [first, first + count) of a source, with the row shape and dtype of `tensor`, a tensor of
/// the module.
at::Tensor rows_of(const Source& source, int64_t first, int64_t count, const at::Tensor& tensor) {
  auto sizes = with_rows(tensor).sizes().vec();
  sizes[0] = count;
  auto rows = at::empty(sizes, tensor.scalar_type());
  ValueCopies copies;
  add_rows(copies, source, first, rows);
  copies.prepare();
  copies.run();
  return rows;
}

bool are_equal(const Source& one, const Source& other, const at::Tensor& tensor) {
  const bool are_whole = one.parts.size() == 1 && other.parts.size() == 1;
  if (are_whole && one.first == other.first && share_values(one.parts[0], other.parts[0])) {
    return true;
  }
  return hold_all_blocks(with_rows(tensor), [&](int64_t first, int64_t count) {
    return have_equal_bits(rows_of(one, first, count, tensor),
                           rows_of(other, first, count, tensor));
  });
}

/// Identifies a tensor's memory. Tensors that share all of it, such as a parameter whose data is
/// that of another one, count as one tensor.
using Memory =
    std::tuple<const void*, at::ScalarType, int64_t, std::vector<int64_t>, std::vector<int64_t>>;

Memory memory_of(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type(), tensor.storage_offset(),
          tensor.sizes().vec(), tensor.strides().vec()};
}

std::string in_file(const Translation& translation, const std::string& prefix,
                    const std::string& name) {
  std::vector<std::string> names;
  for (const auto& each : translation.origins.at(name)) names.push_back(prefix + each);
  return c10::Join(", ", names);
}

}  // namespace

void add_copies(ValueCopies& copies, const Translation& translation, const HeldTensor& to) {
  const at::NoGradGuard no_grad;
  add_rows(copies, source_of(translation, to), 0, with_rows(to.tensor));
}

std::vector<HeldTensor> each_once(const std::vector<HeldTensor>& loaded,
                                  const Translation& translation, const std::string& source,
                                  const std::string& prefix) {
  std::vector<HeldTensor> found;
  std::map<Memory, size_t> known;
  for (const auto& held : loaded) {
    const auto [place, is_new] = known.emplace(memory_of(held.tensor), found.size());
    if (is_new) {
      found.push_back(held);
      continue;
    }
    const auto& first = found[place->second];
    HEED_CHECK(are_equal(source_of(translation, first), source_of(translation, held), held.tensor),
               "{} must equal {} in {}, which are one tensor of the module",
               in_file(translation, prefix, held.name), in_file(translation, prefix, first.name),
               source);
  }
  return found;
}

}  // namespace heed::detail

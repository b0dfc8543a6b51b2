// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/mesh.h>

#include <string>
#include <vector>

#include "distributed/collectives.h"

namespace heed::distributed {

namespace {

constexpr const char* kMesh = "Mesh";

void check_sizes(const MeshOptions& options, int64_t processes) {
  const auto check = [&](const char* name, int64_t size) {
    HEED_CHECK(size >= 1 && size <= processes,
               "{}: {} ({}) must be from 1 to the number of processes ({})", kMesh, name, size,
               processes);
  };
  check("data", options.data());
  check("context", options.context());
  check("tensor", options.tensor());
  const auto product = options.data() * options.context() * options.tensor();
  HEED_CHECK(product == processes,
             "{}: data ({}) * context ({}) * tensor ({}) must equal the number of processes ({})",
             kMesh, options.data(), options.context(), options.tensor(), processes);
}

/// The `count` ranks, `step` apart, on a line of the mesh through `rank`.
std::vector<int64_t> line_through(int64_t rank, int64_t step, int64_t count) {
  const auto first = rank / (step * count) * (step * count) + rank % step;
  std::vector<int64_t> ranks;
  ranks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

}  // namespace

Mesh::Mesh(const ProcessGroup& group, const MeshOptions& options) {
  HEED_CHECK(group, "{}: group must not be null", kMesh);
  HEED_CHECK(group->getStore(), "{}: group must have a store", kMesh);
  const auto data = options.data(), context = options.context(), tensor = options.tensor();
  detail::check_same(group, kMesh, "sizes",
                     fmt::format("data {}, context {}, tensor {}", data, context, tensor));
  check_sizes(options, group->getSize());
  const int64_t rank = group->getRank();
  // The names of subgroups must be new; each process counts its own meshes of this group.
  const auto number = detail::run_named(*group, "counting of meshes", [&] {
    return group->getStore()->add(fmt::format("meshes_of_rank_{}", rank), 1);
  });
  const auto along = [&](const char* dimension, int64_t step, int64_t count) {
    const auto ranks = line_through(rank, step, count);
    return subgroup(group, ranks, fmt::format("mesh_{}_{}_{}", number, dimension, ranks[0]));
  };
  tensor_ = along("tensor", 1, tensor);
  context_ = along("context", tensor, context);
  data_ = along("data", tensor * context, data);
  replicas_ = along("replicas", tensor, context * data);
}

}  // namespace heed::distributed

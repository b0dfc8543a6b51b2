// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/mesh.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "distributed/processes.h"
#include "support/expect.h"

namespace heed::test::of_mesh {
namespace {

using distributed::Mesh;
using distributed::MeshOptions;

/// The ranks of `world` that `group` holds, in its order, as digits.
std::string members(const ProcessGroup& group, int64_t rank) {
  std::vector<std::vector<at::Tensor>> outputs(1);
  std::vector<at::Tensor> inputs = {at::full({1}, rank, at::kLong)};
  for (int i = 0; i < group->getSize(); ++i) outputs[0].push_back(at::full({1}, -1, at::kLong));
  group->allgather(outputs, inputs)->wait();
  std::string text;
  for (const auto& output : outputs[0]) text += std::to_string(output.item<int64_t>());
  return text;
}

TEST(Mesh, PutsTensorRanksNextToEachOther) {
  in_processes(8, [](const ProcessGroup& world) {
    const auto rank = world->getRank();
    const Mesh mesh(world, MeshOptions().data(2).context(2).tensor(2));
    EXPECT_EQ(mesh.tensor_rank(), rank % 2);
    EXPECT_EQ(mesh.context_rank(), rank / 2 % 2);
    EXPECT_EQ(mesh.data_rank(), rank / 4);
    const char* tensor[] = {"01", "01", "23", "23", "45", "45", "67", "67"};
    const char* context[] = {"02", "13", "02", "13", "46", "57", "46", "57"};
    const char* data[] = {"04", "15", "26", "37", "04", "15", "26", "37"};
    const char* replicas[] = {"0246", "1357", "0246", "1357", "0246", "1357", "0246", "1357"};
    EXPECT_EQ(members(mesh.tensor(), rank), tensor[rank]);
    EXPECT_EQ(members(mesh.context(), rank), context[rank]);
    EXPECT_EQ(members(mesh.data(), rank), data[rank]);
    EXPECT_EQ(members(mesh.replicas(), rank), replicas[rank]);
  });
}

TEST(Mesh, HasGroupsOfOneProcess) {
  in_processes(3, [](const ProcessGroup& world) {
    const auto rank = world->getRank();
    const Mesh mesh(world, MeshOptions().context(3));
    EXPECT_EQ(members(mesh.tensor(), rank), std::to_string(rank));
    EXPECT_EQ(members(mesh.data(), rank), std::to_string(rank));
    EXPECT_EQ(members(mesh.context(), rank), "012");
    EXPECT_EQ(members(mesh.replicas(), rank), "012");
    const Mesh second(world, MeshOptions().data(3));
    EXPECT_EQ(members(second.data(), rank), "012");
    // A mesh of a part of the processes.
    if (rank < 2) {
      const auto pair = distributed::subgroup(world, {0, 1}, "pair");
      EXPECT_EQ(members(Mesh(pair, MeshOptions().tensor(2)).tensor(), rank), "01");
    }
    const Mesh third(world, MeshOptions().tensor(3));
    EXPECT_EQ(members(third.tensor(), rank), "012");
  });
}

TEST(Mesh, AveragesGradientsOfReplicas) {
  in_processes(4, [](const ProcessGroup& world) {
    const Mesh mesh(world, MeshOptions().data(2).tensor(2));
    torch::nn::Linear model(1, 1);
    distributed::DataParallel parallel(model, mesh.replicas());
    const auto x = at::full({1, 1}, static_cast<double>(world->getRank()));
    parallel.forward(model, x).sum().backward();
    EXPECT_EQ(model->weight.grad().item<float>(), static_cast<float>(1 + mesh.tensor_rank()));
  });
}

TEST(MeshErrors, NameTheSizes) {
  const auto error = [](const MeshOptions& options, const std::string& expected) {
    in_processes(4,
                 [&](const ProcessGroup& world) { EXPECT_ERROR(expected, Mesh(world, options)); });
  };
  error(MeshOptions().data(2).context(1).tensor(3),
        "Mesh: data (2) * context (1) * tensor (3) must equal the number of processes (4)");
  error(MeshOptions(),
        "Mesh: data (1) * context (1) * tensor (1) must equal the number of processes (4)");
  error(MeshOptions().context(0),
        "Mesh: context (0) must be from 1 to the number of processes (4)");
  error(MeshOptions().tensor(INT64_MAX),
        "Mesh: tensor (9223372036854775807) must be from 1 to the number of processes (4)");
  EXPECT_ERROR("Mesh: group must not be null", Mesh(ProcessGroup(), MeshOptions()));
}

TEST(MeshErrors, NameTheRankThatDiffers) {
  in_processes(4, [](const ProcessGroup& world) {
    auto options = MeshOptions().data(2).tensor(2);
    if (world->getRank() == 3) options = MeshOptions().data(2).context(2);
    EXPECT_ERROR(
        "Mesh: sizes of rank 3 (data 2, context 2, tensor 1) must equal that of rank 0 (data 2, "
        "context 1, tensor 2)",
        Mesh(world, options));
  });
}

}  // namespace
}  // namespace heed::test::of_mesh

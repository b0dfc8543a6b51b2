// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/sharded_weights.h>
#include <sys/resource.h>
#include <torch/utils.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "distributed/processes.h"
#include "support/weight_files.h"

namespace heed::test::of_sharded_weights {
namespace {

namespace distributed = heed::distributed;

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, int64_t first) {
  return at::arange(first, first + c10::multiply_integers(sizes)).reshape(sizes).to(dtype);
}

/// Weights of projections by rows and by columns, in several dtypes, and of what every process has.
NamedTensors whole_tensors(int64_t first = 0) {
  return {{"q", numbers({12, 1024}, at::kFloat, first)},
          {"k", numbers({6, 1024}, at::kFloat, first + 1)},
          {"v", numbers({6, 1024}, at::kFloat, first + 2)},
          {"o", numbers({8, 3072}, at::kBFloat16, first + 3)},
          {"bias", numbers({12}, at::kDouble, first + 4)},
          {"norm", numbers({5}, at::kFloat, first + 5)},
          {"steps", numbers({}, at::kLong, first + 6)}};
}

/// As even as can be.
TensorShard share(const at::Tensor& whole, int64_t dim, int64_t rank, int64_t processes) {
  const auto size = whole.size(dim);
  const auto first = size * rank / processes;
  return {dim, first, size * (rank + 1) / processes - first, size};
}

TensorShards shards_of(const NamedTensors& whole, int64_t rank, int64_t processes) {
  TensorShards shards;
  for (const auto* name : {"q", "k", "v", "bias"}) {
    shards[name] = share(whole.at(name), 0, rank, processes);
  }
  shards["o"] = share(whole.at("o"), 1, rank, processes);
  return shards;
}

NamedTensors parts_of(NamedTensors tensors, const TensorShards& shards) {
  for (const auto& [name, shard] : shards) {
    auto& tensor = tensors.at(name);
    tensor = tensor.narrow(shard.dim, shard.first, shard.size);
  }
  return tensors;
}

NamedTensors zeros_like_all(NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = at::zeros_like(tensor);
  return tensors;
}

void expect_holds(const Box& box, const NamedTensors& expected) {
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(box[name].equal(tensor)) << name;
}

using ShardedWeights = WeightFiles;

TEST_F(ShardedWeights, AreSavedAsOneProcessSavesThem) {
  for (const int64_t processes : {1, 2, 3}) {
    in_processes(processes, [&](const ProcessGroup& group) {
      const auto rank = group->getRank();
      const auto whole = whole_tensors();
      const auto shards = shards_of(whole, rank, processes);
      const Box box(parts_of(whole, shards));
      const auto one = directory_ / "one";
      for (const auto& map :
           {NameMap(), NameMap().split("qkv", {"q", "k", "v"}).transpose("out", "o"),
            NameMap().transpose_split("qkv", {"q", "v"}).rename("n", "norm")}) {
        const auto options = SaveOptions().name_map(map);
        if (rank == 0) heed::save_weights(Box(whole), one, options);
        distributed::save_weights(box, path_, group, shards, options);
        EXPECT_TRUE(rank != 0 || read_bytes(path_) == read_bytes(one));
      }
    });
  }
}

/// Processes that have the same key/value head: the lowest rank's is written.
TEST_F(ShardedWeights, ThatAreRepeatedAreSavedOnce) {
  in_processes(4, [&](const ProcessGroup& group) {
    const auto rank = group->getRank();
    const auto whole = numbers({6, 8}, at::kFloat, 0);
    const TensorShards shards = {{"k", {0, rank / 2 * 3, 3, 6}}};
    const Box box({{"k", whole.narrow(0, rank / 2 * 3, 3) + (rank % 2)}});
    distributed::save_weights(box, path_, group, shards);
    EXPECT_TRUE(read_weights(path_).at("k").equal(whole));
  });
}

TEST_F(ShardedWeights, AreReadAloneByTheirProcess) {
  for (const int64_t processes : {2, 3}) {
    in_processes(processes, [&](const ProcessGroup& group) {
      const auto rank = group->getRank();
      const auto whole = whole_tensors();
      if (rank == 0) heed::save_weights(Box(whole), path_);
      group->barrier()->wait();
      const auto shards = shards_of(whole, rank, processes);
      const auto expected = parts_of(whole, shards);
      Box box(zeros_like_all(expected));
      const auto report =
          distributed::load_weights(box, path_, group, LoadOptions().shards(shards));
      expect_holds(box, expected);
      EXPECT_EQ(report.loaded.size(), whole.size());
      size_t bytes = 0;
      for (const auto& [name, tensor] : expected) bytes += tensor.nbytes();
      constexpr size_t kHeaders = 6000;
      EXPECT_GE(report.bytes_read, bytes);
      EXPECT_LE(report.bytes_read, bytes + kHeaders);
      EXPECT_LE(report.bytes_read, std::filesystem::file_size(path_) / processes + kHeaders);
    });
  }
}

TEST_F(ShardedWeights, AreLoadedByAnyNumberOfProcesses) {
  const auto options = [] { return NameMap().split("qkv", {"q", "k", "v"}).transpose("out", "o"); };
  in_processes(3, [&](const ProcessGroup& group) {
    const auto whole = whole_tensors();
    const auto shards = shards_of(whole, group->getRank(), 3);
    distributed::save_weights(Box(parts_of(whole, shards)), path_, group, shards,
                              SaveOptions().name_map(options()));
  });
  for (const int64_t processes : {1, 2}) {
    in_processes(processes, [&](const ProcessGroup& group) {
      const auto whole = whole_tensors();
      const auto shards = shards_of(whole, group->getRank(), processes);
      const auto expected = parts_of(whole, shards);
      Box box(zeros_like_all(expected));
      distributed::load_weights(box, path_, group,
                                LoadOptions().shards(shards).name_map(options()));
      expect_holds(box, expected);
    });
  }
}

/// Saving throws `expected` in every process of two; the file that was there stays.
void expect_not_saved(const std::string& path, const std::string& expected,
                      const std::function<void(int64_t rank, TensorShards&)>& prepare,
                      const SaveOptions& options = {}) {
  in_processes(2, [&](const ProcessGroup& group) {
    const auto whole = whole_tensors();
    auto shards = shards_of(whole, group->getRank(), 2);
    const Box box(parts_of(whole, shards));
    prepare(group->getRank(), shards);
    EXPECT_ERROR("save_weights: " + expected,
                 distributed::save_weights(box, path, group, shards, options));
  });
}

TEST_F(ShardedWeights, ThatCannotBeWrittenAreAnErrorOfAllProcesses) {
  write("before");
  const auto nothing = [](int64_t, TensorShards&) {};
  const auto absent = directory_ / "absent" / "file";
  expect_not_saved(
      absent,
      "process 0 of 2: path (" + absent.string() + ") must be writable; No such file or directory",
      nothing);
  // A full disk, of which rank 0 learns in the middle.
  expect_not_saved(path_, "process 0 of 2: path (" + path_ + ") must be writable; File too large",
                   [](int64_t rank, TensorShards&) {
                     if (rank != 0) return;
                     ::signal(SIGXFSZ, SIG_IGN);
                     const rlimit limit{50'000, 50'000};
                     ::setrlimit(RLIMIT_FSIZE, &limit);
                   });
  expect_not_saved(path_,
                   "process 0 of 2: name map: a, b -> q: it cannot be turned around: how many rows "
                   "of q are whose is not known",
                   nothing, SaveOptions().name_map(NameMap().pack({"a", "b"}, "q")));
  expect_not_saved(path_,
                   "process 0 of 2: format (torchscript) must be safetensors, which is written "
                   "tensor by tensor",
                   nothing, SaveOptions().format(WeightFormat::torchscript));
  EXPECT_EQ(read_bytes(path_), "before");
  std::filesystem::remove(path_);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(ShardedWeights, ThatDoNotFitTogetherAreAnErrorOfAllProcesses) {
  expect_not_saved(path_, "process 1 of 2: shards: x must be a parameter or buffer of the module",
                   [](int64_t rank, TensorShards& shards) {
                     if (rank == 1) shards["x"] = {0, 0, 1, 1};
                   });
  expect_not_saved(path_,
                   "tensors of rank 1 (bias Double [12] in parts of dim 0) must equal that of rank "
                   "0 (bias Double [6])",
                   [](int64_t rank, TensorShards& shards) {
                     if (rank == 0) shards.erase("bias");
                   });
  expect_not_saved(path_, "shards: q: index 6 of dim 0 must be in a process",
                   [](int64_t rank, TensorShards& shards) {
                     if (rank == 1) shards["q"].first = 0;
                   });
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(ShardedWeights, ThatDoNotFitTheFileAreAnErrorOfAllProcesses) {
  in_processes(3, [&](const ProcessGroup& group) {
    const auto rank = group->getRank();
    const auto whole = whole_tensors();
    if (rank == 0) heed::save_weights(Box(whole), path_);
    group->barrier()->wait();
    const auto shards = shards_of(whole, rank, 3);
    const auto before = zeros_like_all(parts_of(whole, shards));
    Box box(before);
    const auto error = [&](const std::string& path, const TensorShards& tried) {
      auto text = value_error(
          [&] { distributed::load_weights(box, path, group, LoadOptions().shards(tried)); });
      expect_holds(box, before);
      return text;
    };
    auto wrong = shards;
    if (rank == 1) wrong["q"].whole = 13;
    EXPECT_EQ(error(path_, wrong),
              "load_weights: process 1 of 3: path (" + path_ +
                  ") must fit the module, 6 of whose 7 tensors do\n  misshapen: q (Float [4, 1024] "
                  "in the module, a part of [13, 1024], Float [12, 1024] in the file)");
    const auto absent = (directory_ / "absent").string();
    EXPECT_EQ(error(rank == 2 ? absent : path_, shards),
              "load_weights: process 2 of 3: path (" + absent + ") must name an existing file");
  });
}

/// Rank 1 alone has the row in which the two names of a parameter differ.
TEST_F(ShardedWeights, OfOneParameterThatDifferAreAnErrorOfAllProcesses) {
  in_processes(2, [&](const ProcessGroup& group) {
    const auto rank = group->getRank();
    const auto whole = numbers({6, 8}, at::kFloat, 1);
    auto other = whole.clone();
    other[5][7] = 0;
    if (rank == 0) heed::save_weights(Box({{"embedding", whole}, {"head", other}}), path_);
    group->barrier()->wait();
    torch::nn::Module module("Tied");
    const auto part = module.register_parameter("embedding", at::zeros({3, 8}));
    module.register_parameter("head", part);
    const TensorShard shard{0, 3 * rank, 3, 6};
    EXPECT_ERROR(
        "load_weights: process 1 of 2: head must equal embedding in path (" + path_ +
            "), which are one tensor of the module",
        distributed::load_weights(module, path_, group,
                                  LoadOptions().shards({{"embedding", shard}, {"head", shard}})));
    EXPECT_TRUE(part.equal(at::zeros({3, 8})));
  });
}

/// One process fails when all have checked: moving to the device is the first thing that changes.
TEST_F(ShardedWeights, OfWhichOneFailsLateAreAnErrorOfAllProcesses) {
  in_processes(2, [&](const ProcessGroup& group) {
    const auto whole = whole_tensors();
    if (group->getRank() == 0) heed::save_weights(Box(whole), path_);
    group->barrier()->wait();
    Box box(zeros_like_all(whole));
    auto options = LoadOptions();
    if (group->getRank() == 1) options.device(at::kMeta);
    const auto error = value_error([&] { distributed::load_weights(box, path_, group, options); });
    EXPECT_EQ(error.rfind("load_weights: process 1 of 2: Attempted to call", 0), 0U) << error;
  });
}

TEST_F(ShardedWeights, OfAProcessThatDiesAreAnErrorOfTheOthers) {
  write("before");
  const auto ended = run_group(3, [&](const ProcessGroup& group) {
    const auto rank = group->getRank();
    const auto whole = whole_tensors();
    const auto shards = shards_of(whole, rank, 3);
    const Box box(parts_of(whole, shards));
    if (rank == 1) ::_exit(0);
    distributed::save_weights(box, path_, group, shards);
  });
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ended[rank].exit_code, 1);
    EXPECT_EQ(ended[rank].output.rfind(
                  "save_weights failed in process " + std::to_string(rank) + " of 3: ", 0),
              0U)
        << ended[rank].output;
    EXPECT_LT(ended[rank].seconds, kSoon);
  }
  EXPECT_EQ(read_bytes(path_), "before");
}

Decoder decoder(int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  const auto attention = GroupQueryAttentionOptions(512, 4, 2);
  return Decoder(DecoderOptions(24, TransformerBlockOptions(attention), 2)
                     .positions(PositionEmbeddingOptions(512)));
}

/// A split model writes the file of a whole one, and reads its part of it.
TEST_F(ShardedWeights, OfSplitModelsAreThoseOfAWholeModel) {
  for (const int64_t processes : {2, 4}) {
    in_processes(processes, [&](const ProcessGroup& group) {
      const auto rank = group->getRank();
      for (const auto& map : {NameMap(), name_maps::gpt2()}) {
        const auto one = (directory_ / "one").string();
        if (rank == 0) {
          heed::save_weights(*decoder(/*seed=*/1), one, SaveOptions().name_map(map));
        }
        group->barrier()->wait();
        auto model = decoder(/*seed=*/2);
        distributed::parallelize(*model, group);
        const auto report =
            distributed::load_weights(*model, one, group, LoadOptions().name_map(map));
        distributed::save_weights(*model, path_, group, SaveOptions().name_map(map));
        EXPECT_TRUE(rank != 0 || read_bytes(path_) == read_bytes(one));
        size_t bytes = 0;
        for (const auto& parameter : model->parameters()) bytes += parameter.nbytes();
        constexpr size_t kHeaders = 15'000;
        EXPECT_GE(report.bytes_read, bytes);
        EXPECT_TRUE(!map.empty() || report.bytes_read <= bytes + kHeaders);
        auto whole = decoder(/*seed=*/3);
        heed::load_weights(*whole, path_, LoadOptions().name_map(map));
        const auto expected = decoder(/*seed=*/1);
        for (const auto& item : expected->named_parameters()) {
          EXPECT_TRUE(whole->named_parameters()[item.key()].equal(item.value())) << item.key();
        }
      }
    });
  }
}

}  // namespace
}  // namespace heed::test::of_sharded_weights
